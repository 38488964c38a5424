"""Recognizing what a project is made with, from its files alone. Nothing of it is run, no link followed."""

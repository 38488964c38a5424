"""Benchmarks of the framework itself: each is a command that prints figures."""

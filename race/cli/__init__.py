"""The command ``race``."""

from race.cli.app import main

__all__ = ["main"]

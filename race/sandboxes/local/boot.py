"""Starts one of the providers' helper processes: ``python -I -S boot.py MODULE FD [ARGUMENT ...]``.

A helper is forked from for every sandbox, and must be small: importing ``race`` the ordinary way would load
the whole framework. So its packages are registered bare, and only the modules that the helper asks for are
run.
"""

import importlib
import os
import sys
import types


def main() -> None:
    """Run ``main(FD, ARGUMENT, ...)`` of a module below ``race.sandboxes``."""
    top = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    for package in ("race", "race.sandboxes", "race.sandboxes.copy", "race.sandboxes.local"):
        bare = types.ModuleType(package)
        bare.__path__ = [os.path.join(top, *package.split(".")[1:])]
        sys.modules[package] = bare
    helper = importlib.import_module(f"race.sandboxes.{sys.argv[1]}")
    helper.main(int(sys.argv[2]), *sys.argv[3:])


if __name__ == "__main__":
    main()

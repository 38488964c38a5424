"""Starts one of the provider's helper processes: ``python -I -S boot.py MODULE FD [ARGUMENT ...]``.

A helper is forked from for every sandbox, and must be small: importing ``race`` the ordinary way would load
the whole framework. So its packages are registered bare, and only the modules that the helper asks for are
run.
"""

import importlib
import os
import sys
import types


def main() -> None:
    """Run ``main(FD, ARGUMENT, ...)`` of the module."""
    folder = os.path.dirname(os.path.abspath(__file__))
    for depth, package in enumerate(("race.sandboxes.local", "race.sandboxes", "race")):
        bare = types.ModuleType(package)
        bare.__path__ = [os.path.normpath(os.path.join(folder, *[".."] * depth))]
        sys.modules[package] = bare
    helper = importlib.import_module(f"race.sandboxes.local.{sys.argv[1]}")
    helper.main(int(sys.argv[2]), *sys.argv[3:])


if __name__ == "__main__":
    main()

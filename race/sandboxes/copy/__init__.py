"""Sandboxes that are folders, for machines where nothing better is allowed: there is no isolation.

Each sandbox is a folder with what was put there; a fork is a copy of it, which shares blocks where the file system can.
Commands are ordinary processes of this machine and its user. Each has a `runner` of its own, which can end all that
the command started; where the kernel has Landlock, commands can write below their own folder only.

The absolute paths of the contract, such as ``/app``, lie below the sandbox's folder, which commands find in
``RACE_ROOT``; ``HOME`` and ``TMPDIR`` are there as well. A command that names ``/app`` itself means that of the
machine: see `race.sandbox.Sandbox.place`.
"""

from race.sandboxes.copy.provider import CopyProvider

__all__ = ["CopyProvider"]
"""Makes and finds such sandboxes."""

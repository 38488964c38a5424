"""Sandboxes of Archil: microVMs of its service, through its official SDK (``pip install 'forkrace[archil]'``).

The key and the region come from ``ARCHIL_API_KEY`` and ``ARCHIL_REGION``, or from ``ARCHIL_BASE_URL``. A sandbox
can only be looked into by running something in it, so what is read from a fork is what its own programs say;
the capabilities carry a warning of that.
"""

from race.sandboxes.archil.provider import ArchilProvider

__all__ = ["ArchilProvider"]
"""Makes and finds such sandboxes."""

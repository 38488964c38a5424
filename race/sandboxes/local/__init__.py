"""Sandboxes on this machine, made of the Linux kernel's own means.

How it works, from the outside in: `provider` makes and finds sandboxes and `client` is one of them; `records` holds
what is written down, `workshop` brings it to life; the helper process `zygote` makes the namespaces, and `pid1` in
each of them starts commands, each under a `shim`. `layers` and `changes` look at the files from outside.
"""

from race.sandboxes.local.provider import LocalProvider

__all__ = ["LocalProvider"]

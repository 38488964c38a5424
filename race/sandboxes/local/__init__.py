"""Sandboxes on this machine, made of the Linux kernel's own means.

How it works, from the outside in: `provider` makes and finds sandboxes and `client` is one of them; `records` holds
what is written down, `workshop` brings it to life; the helper process `zygote` has it forked from a `template`, and
`pid1` in it starts each command by a `launch`, and lets a `worker` move files. `layers` and `changes` look at the files
from outside.
"""

from race.sandboxes.local.provider import LocalProvider

__all__ = ["LocalProvider"]

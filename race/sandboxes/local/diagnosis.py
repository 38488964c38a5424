"""Why this machine could not make a sandbox, and what to do about it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_NO_USER_NAMESPACES = (
    "user namespaces are forbidden here. On Ubuntu 24.04 and newer: `sysctl -w "
    "kernel.apparmor_restrict_unprivileged_userns=0`; elsewhere `sysctl -w user.max_user_namespaces=15000` and, "
    "on older Debian, `sysctl -w kernel.unprivileged_userns_clone=1`; in a container: start it with --privileged"
)
_NO_OVERLAY_STORE = (
    "the file system of {home} cannot hold what an overlay writes (inside a container it is usually an overlay "
    "itself): set RACE_HOME to a folder on ext4, xfs, btrfs or tmpfs, in a container on a volume"
)
_NO_SHIFTING = (
    "the file system of {path} cannot be shown with shifted owners, which root's sandboxes need: use ext4, xfs, "
    "btrfs or a kernel of version 6.3 or newer for tmpfs, or run as an ordinary user"
)
_NO_SHIFTED_STORE = (
    "the file system of {home} cannot be shown with shifted owners, which root's sandboxes need (inside a "
    "container it is usually an overlay): set RACE_HOME to a folder on ext4, xfs or btrfs, in a container on a "
    "volume, or run as an ordinary user"
)
_NO_PROC = (
    "the container that this runs in covers parts of /proc, and then the kernel lets nobody mount another one: "
    "start the container with --privileged or --security-opt systempaths=unconfined"
)
_OLD_KERNEL = (
    "this kernel is too old: version 5.19 or newer is needed as root, 5.11 or newer as an ordinary user"
)
_NO_OVERLAY = "this kernel has no overlay file system, or may not load it: `modprobe overlay`"
_FORBIDDEN_MOUNTS = (
    "something above this process, such as a container's seccomp or AppArmor profile, forbids it to mount: start "
    "the container with --privileged"
)


def explain(error: str, call: str, home: Path) -> str:
    """The sentence for people about a failure to make a sandbox.

    Args:
        error: what the kernel said.
        call: the system call that failed, and on what.
        home: the provider's folder.
    """
    what = f"this machine could not make a sandbox: {error}" + (f" ({call})" if call else "")
    advice = remedy(error, call, home)
    return f"{what}. {advice[0].upper()}{advice[1:]}." if advice else what


def remedy(error: str, call: str, home: Path) -> str:
    """What to do about a failure; empty if that is not known."""
    denied = error.startswith((os.strerror(1), os.strerror(13)))
    if "Function not implemented" in error:
        return _OLD_KERNEL
    if call.startswith("unshare") or call.endswith(("uid_map", "gid_map", "setgroups")):
        return _NO_USER_NAMESPACES
    missing = error.startswith(os.strerror(errno.ENODEV)) and call == "fsopen overlay"
    if missing or call.startswith(("overlay", "prepare")):
        return _store_remedy(error, call, denied=denied).format(home=home)
    if call.startswith("mount_setattr"):
        path = call.rpartition(" of ")[2]
        return _NO_SHIFTED_STORE.format(home=home) if path == str(home) else _NO_SHIFTING.format(path=path)
    if call.startswith(("mount", "open_tree", "move_mount", "fsopen", "pivot_root")) and denied:
        return _NO_PROC if call == "mount proc" else _FORBIDDEN_MOUNTS
    return ""


def _store_remedy(error: str, call: str, *, denied: bool) -> str:
    """What to do about a failure to write to, or to mount, the folder that sandboxes are kept in."""
    if error.startswith(os.strerror(errno.ENODEV)):
        return _NO_OVERLAY
    if "too many" in error:
        return "fork from an earlier sandbox, or use Linux 6.8 or newer"
    if "userxattr" in call:  # a kernel without overlays for ordinary users does not know the option
        return _OLD_KERNEL
    return _NO_OVERLAY_STORE if call.startswith("overlay") or denied or "not supported" in error else ""

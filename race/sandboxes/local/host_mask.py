"""What of the host is not for sandboxes, and what they get in its place."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from race.sandboxes.local import host_tools

if TYPE_CHECKING:
    from collections.abc import Iterable

EMPTY = {
    "/root": 0o700,
    "/home": 0o755,
    "/tmp": 0o1777,  # noqa: S108 - the sandbox's own
    "/run": 0o755,
    "/run/lock": 0o1777,
    "/mnt": 0o755,
    "/media": 0o755,
    "/srv": 0o755,
    "/proc": 0o555,
    "/sys": 0o555,
    "/dev": 0o755,
    "/var/tmp": 0o1777,  # noqa: S108 - the sandbox's own
    "/var/log": 0o755,
    "/var/spool": 0o755,
    "/var/backups": 0o755,
    "/var/mail": 0o755,
}
"""Directories that sandboxes have empty, whatever the host has in them."""

HIDDEN = (
    "/etc/shadow-",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/krb5.keytab",
    "/etc/wireguard",
    "/etc/NetworkManager",
    "/etc/docker",
    "/etc/kubernetes",
    "/etc/rancher",
    "/etc/openvpn",
    "/etc/ppp",
    "/etc/cloud",
    "/etc/letsencrypt",
    "/etc/credstore",
    "/etc/credstore.encrypted",
    "/etc/polkit-1",
    "/etc/machine-id",
    "/etc/fstab",
    "/etc/crypttab",
    "/etc/environment",
    "/etc/environment.d",
    "/etc/netrc",
    "/etc/cifs-credentials",
)
KEPT = {
    "/var/lib": frozenset(
        {
            "alternatives",
            "apt",
            "ca-certificates-java",
            "debconf",
            "dpkg",
            "gems",
            "ghc",
            "git",
            "misc",
            "nodejs",
            "pacman",
            "pam",
            "python",
            "rpm",
            "sgml-base",
            "shells.state",
            "systemd",
            "texmf",
            "ucf",
            "vim",
            "xml-core",
        }
    ),
    "/var/cache": frozenset({"apt", "debconf", "fontconfig", "ldconfig", "man"}),
}
"""Directories of which only these names are shown: the rest is the data of services."""

REPLACED = {
    "/etc/shadow": ("root:*:19000:0:99999:7:::\n", 0o640),
    "/etc/gshadow": ("root:*::\n", 0o640),
}
_CREDENTIALS = (
    "credentials",
    "credentials.toml",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    "auth.json",
    "auth.toml",
)
OTHERS_READ = 0o004
"""The permission bit of what is for everybody."""
_PEOPLE = range(1000, 60000)
_HOME = 5
"""The field of passwd(5)."""


def unreadable(top: str) -> list[str]:
    """What is not for everybody by the host's own judgement, such as keys of services."""
    found: list[str] = []
    for folder, folders, files in os.walk(top):
        for name in list(folders):
            path = os.path.join(folder, name)
            if not os.path.islink(path) and not os.lstat(path).st_mode & OTHERS_READ:
                found.append(path)
                folders.remove(name)
        for name in files:
            path = os.path.join(folder, name)
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                continue
            if not stat.S_ISLNK(status.st_mode) and not status.st_mode & OTHERS_READ:
                found.append(path)
    return found


def left_out() -> list[str]:
    """The data of services."""
    return [
        entry.path
        for folder, kept in KEPT.items()
        for entry in (os.scandir(folder) if Path(folder).is_dir() else ())
        if entry.name not in kept
    ]


def credentials(folders: Iterable[str]) -> list[str]:
    """Files in installations of tools that are known to hold somebody's credentials."""
    return [
        str(found)
        for folder in folders
        for name in _CREDENTIALS
        for found in (*Path(folder).glob(name), *Path(folder).glob(f"*/{name}"))
    ]


def people_homes() -> list[str]:
    """Home folders of people that lie in a directory that is shown."""
    found: list[str] = []
    for line in Path("/etc/passwd").read_text(errors="replace").splitlines():
        fields = line.split(":")
        if len(fields) > _HOME and fields[2].isdigit() and int(fields[2]) in _PEOPLE:
            home = os.path.normpath(fields[_HOME])
            if home.count("/") > 1 and home.split("/")[1] in host_tools.SYSTEM:
                found.append(home)
    return found

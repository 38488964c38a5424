"""The host's tools, as a sandbox that is made of the host finds them: where they are, and the environment.

Nothing of the host's environment is inherited but what is listed here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "var", "nix")
"""The names at the root of the host's file system that are shown."""

STANDARD_PATH = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
)

_INHERITED = (
    "TZ",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "NIX_SSL_CERT_FILE",
    "PIP_CERT",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
)
_PRIVATE_FOLDERS = frozenset(
    {
        ".ssh",
        ".aws",
        ".config",
        ".gnupg",
        ".kube",
        ".docker",
        ".local",
        ".cache",
        ".mozilla",
        ".azure",
        ".claude",
    }
)


def base_environment() -> dict[str, str]:
    """What every image's commands get."""
    return {
        "PATH": ":".join(STANDARD_PATH),
        "HOME": "/root",
        "USER": "root",
        "LOGNAME": "root",
        "LANG": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        # Files of a project may belong to another user than the one who runs git.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }


def host_environment(tools: tuple[str, ...]) -> dict[str, str]:
    """What commands get in a sandbox that is made of the host.

    Args:
        tools: from `tool_folders`.
    """
    environment = base_environment()
    environment["PATH"] = ":".join(search_path(tools))
    for key in _INHERITED:
        value = os.environ.get(key)
        if value and "@" not in value:  # an address with a password in it
            environment[key] = value
    for folder in tools:
        if folder.endswith("/.rustup"):
            environment["RUSTUP_HOME"] = folder
        if folder.endswith("/.cargo"):
            environment["CARGO_HOME"] = folder
    return environment


def search_path(tools: tuple[str, ...]) -> list[str]:
    """PATH: this Python's own folder, what of the host's PATH can be seen, and the standard folders.

    The shims of pyenv are left out, which cost a tenth of a second a call: the Python that they lead to is
    there itself. So are virtual environments, which belong to whatever project the framework is used in.
    """
    python = f"{sys.base_prefix}/bin"
    candidates = [] if sys.base_prefix in ("/usr", "/usr/local") else [python]
    candidates += [
        each
        for each in os.environ.get("PATH", "").split(":")
        if not each.rstrip("/").endswith("/shims") and not Path(each, "../pyvenv.cfg").exists()
    ]
    found: list[str] = []
    for each in (*candidates, *STANDARD_PATH):
        folder = os.path.normpath(each)
        if folder not in found and os.path.isabs(folder) and Path(folder).is_dir() and _shown(folder, tools):
            found.append(folder)
    return found


def _shown(folder: str, tools: tuple[str, ...]) -> bool:
    return folder.split("/")[1] in SYSTEM or any(
        folder == each or folder.startswith(f"{each}/") for each in tools
    )


def tool_folders() -> tuple[str, ...]:
    """Installations in home folders, or elsewhere out of sight, that this Python or PATH lead to.

    A hidden folder of a home, such as ``~/.pyenv``, is shown as a whole, unless it is one of those where
    people keep secrets.
    """
    found: list[str] = []
    candidates = [*os.environ.get("PATH", "").split(":"), sys.base_prefix]
    for candidate in candidates:
        for path in (candidate, os.path.realpath(candidate)):
            folder = _installation(path)
            if folder is not None and folder not in found and Path(folder).is_dir():
                found.append(folder)
                if folder.endswith("/.cargo") and Path(folder).with_name(".rustup").is_dir():
                    found.append(str(Path(folder).with_name(".rustup")))
    if not _shown(sys.base_prefix, tuple(found)):
        found.append(sys.base_prefix)
    outermost = [each for each in found if not any(each.startswith(f"{other}/") for other in found)]
    return tuple(sorted(set(outermost)))


def _installation(path: str) -> str | None:
    parts = path.strip("/").split("/")
    depth = {"root": 1, "home": 2}.get(parts[0])
    if not path.startswith("/") or depth is None or len(parts) <= depth:
        return None
    name = parts[depth]
    if not name.startswith(".") or name in _PRIVATE_FOLDERS:
        return None
    return "/" + "/".join(parts[: depth + 1])


def python_program() -> str:
    """The Python that runs this, outside of any virtual environment."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name in (f"python{version}", "python3"):
        program = Path(sys.base_prefix, "bin", name)
        if program.exists():
            return str(program)
    return os.path.realpath(sys.executable)


def traces() -> list[str]:
    """The paths whose times tell that the host's tools changed: package databases and program folders."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = f"{sys.base_prefix}/lib/{version}"
    paths = [
        "/etc/os-release",
        "/etc/passwd",
        "/var/lib/dpkg/status",
        "/var/lib/rpm",
        "/usr/lib/sysimage/rpm",
        "/var/lib/pacman/local",
        "/lib/apk/db/installed",
        "/nix/var/nix/profiles",
        "/opt",
        "/usr/local/lib/node_modules",
        "/usr/lib/node_modules",
        library,
        f"{library}/site-packages",
        f"{library}/dist-packages",
        *search_path(tool_folders()),
    ]
    for parent in ("/usr/local/lib", "/usr/lib/python3", "/opt"):
        if Path(parent).is_dir():
            paths += [entry.path for entry in os.scandir(parent) if entry.is_dir(follow_symlinks=False)]
    for parent in ("/usr/local/lib", "/usr/lib"):
        paths += [str(each) for each in Path(parent).glob("python3*/*-packages")]
    return sorted(set(paths))

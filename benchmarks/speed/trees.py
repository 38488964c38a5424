"""The file trees that are forked: a small root filesystem, and the same one with 50,000 files and 2 GB more."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = ("bash", "true", "sh", "cat", "sleep")
FILES_IN_FOLDER = 250
BIG_FILES = 8
BIG_BYTES = 2 << 30


def small(top: Path, programs: Sequence[str] = PROGRAMS) -> Path:
    """A root filesystem with a few of this machine's programs and the libraries that they need."""
    for name in ("bin", "dev", "etc", "proc", "root", "sys", "tmp"):
        (top / name).mkdir(parents=True)
    for name in programs:
        program = shutil.which(name, path="/bin:/usr/bin")
        assert program is not None, name
        shutil.copy(program, top / "bin" / name)
        linked = subprocess.run(["ldd", program], capture_output=True, check=True, text=True).stdout
        for library in re.findall(r"(/\S+) \(0x", linked):
            place = top / library.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                shutil.copy(library, place)
    (top / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    return top


def big(top: Path, files: int) -> Path:
    """The small one and many files, of which a few are large and have holes in place of content."""
    small(top)
    for number in range(files):
        if number % FILES_IN_FOLDER == 0:
            folder = top / "data" / str(number // FILES_IN_FOLDER)
            folder.mkdir(parents=True)
        (folder / str(number)).write_bytes(b"x")
    for number in range(BIG_FILES):
        with (top / "data" / f"large{number}").open("wb") as file:
            file.truncate(BIG_BYTES // BIG_FILES)
    return top

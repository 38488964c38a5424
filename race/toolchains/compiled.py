"""Rust and Go projects, and those that a makefile tests."""

from __future__ import annotations

import posixpath
import re
from typing import Any, cast

from race.toolchains.tree import SourceTree, Toolchain, protect

MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
"""In the order in which make looks for them."""

_MAKE_FOLDERS = ("tests", "test", "t", "testdata")


def cargo(tree: SourceTree) -> Toolchain | None:
    """Recognize a Rust project or workspace."""
    if not tree.has("Cargo.toml"):
        return None
    package: object = tree.toml("Cargo.toml").get("package")
    about = cast("dict[str, Any]", package) if isinstance(package, dict) else {}
    protected = protect(
        tree,
        lambda p: p.endswith(".rs") and bool({"tests", "benches"}.intersection(p.split("/")[:-1])),
        folders=("tests", "benches"),
        wildcards=(),
    )
    # A manifest can switch tests off, and a configuration file can put another program in their place.
    manifests = [p for p in tree.own() if posixpath.basename(p) == "Cargo.toml"]
    protected.append("**/Cargo.toml" if len(manifests) > 1 else "Cargo.toml")
    protected += [p for p in (".cargo/config.toml", ".cargo/config", "build.rs") if tree.has(p)]
    inline = any(p.endswith(".rs") and "#[test]" in tree.text(p) for p in tree.own() if p.startswith("src/"))
    notes = (
        ("Tests inside of source files cannot be protected apart from them; those in tests/ can.",)
        if inline
        else ()
    )
    return Toolchain(
        "Rust",
        "cargo test -q",
        name=str(about.get("name", "")),
        setup=("cargo test -q --no-run",),
        protected=tuple(protected),
        advice=("There is no network while you are judged; what is to be compiled must be there already.",),
        notes=notes,
    )


def go(tree: SourceTree) -> Toolchain | None:
    """Recognize a Go module."""
    if not tree.has("go.mod"):
        return None
    module = re.search(r'^module\s+"?([^\s"]+)', tree.text("go.mod"), re.MULTILINE)
    name = re.sub(r"/v\d+$", "", module[1]).rpartition("/")[2] if module else ""
    protected = protect(
        tree,
        lambda p: p.endswith("_test.go") or "testdata" in p.split("/")[:-1],
        folders=("testdata",),
        wildcards=("*_test.go",),
    )
    protected.append("go.mod")
    tested = any(p.endswith("_test.go") for p in tree.own())
    return Toolchain(
        "Go",
        "go test ./..." if tested else None,
        name=name,
        setup=("go mod download", "go build ./..."),
        protected=tuple(protected),
    )


def make(tree: SourceTree) -> Toolchain | None:
    """Recognize a makefile with a target ``test`` or ``check``."""
    file = tree.first(*MAKEFILES)
    if file is None:
        return None
    target = next((t for t in ("test", "check") if has_target(tree.text(file), t)), None)
    protected = protect(
        tree,
        lambda p: (
            bool(set(_MAKE_FOLDERS).intersection(p.split("/")[:-1]))
            or re.fullmatch(r"(?:.*/)?(?:test_[^/]*|[^/]*_test)\.[^/.]+", p) is not None
        ),
        folders=_MAKE_FOLDERS,
        wildcards=("test_*", "*_test.*"),
    )
    return Toolchain("make", f"make {target}" if target else None, protected=(*protected, file))


def has_target(makefile: str, target: str) -> bool:
    """Whether a makefile has a rule for a target. An assignment such as ``test := 1`` is none."""
    return (
        re.search(rf"^(?:[\w./-]+ +)*{target}(?: +[\w./-]+)*\s*:(?!:?=)", makefile, re.MULTILINE) is not None
    )

"""JavaScript and TypeScript projects: what ``package.json`` says, by the manager whose lock file is there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from race.toolchains.tree import SourceTree, Toolchain, pattern_of, protect

_TEST_FILE = re.compile(r"(?:.*/)?(?:[^/]+[._-](?:test|spec)|test(?:[._-][^/]*)?)\.[cm]?[jt]sx?")
_FOLDERS = ("__tests__", "__snapshots__", "tests", "test", "spec", "specs", "e2e", "cypress")
_CONFIGURATION = re.compile(
    r"(?:jest|vitest|karma|ava|playwright|cypress)(?:\.[\w-]+)*\.(?:[cm]?[jt]s|json)"
    r"|\.mocharc(?:\.\w+)?|\.taprc"
)
_PLACEHOLDER = "no test specified"
_MANAGERS = (
    ("pnpm-lock.yaml", "pnpm", "pnpm install --frozen-lockfile"),
    ("yarn.lock", "yarn", "yarn install"),
    ("bun.lock", "bun run", "bun install"),
    ("bun.lockb", "bun run", "bun install"),
    ("package-lock.json", "npm", "npm ci --no-audit --no-fund"),
    ("npm-shrinkwrap.json", "npm", "npm ci --no-audit --no-fund"),
)


def javascript(tree: SourceTree) -> Toolchain | None:
    """Recognize a project with a ``package.json``."""
    if not tree.has("package.json"):
        return None
    package = _package(tree)
    said = scripts(tree)
    _, manager, install = _manager(tree)
    tested = "test" in said and _PLACEHOLDER not in said["test"]
    needs = any(
        package.get(key) for key in ("dependencies", "devDependencies", "workspaces", "optionalDependencies")
    )
    protected = protect(
        tree,
        lambda p: _TEST_FILE.fullmatch(p) is not None or bool(set(_FOLDERS).intersection(p.split("/")[:-1])),
        folders=_FOLDERS,
        wildcards=("*.test.*", "*.spec.*", "*_test.*", "test.*", "test-*", "*-test.*"),
    )
    protected += [pattern_of(p) for p in tree.paths if _CONFIGURATION.fullmatch(p)]
    protected.append("package.json")  # the commands that are run for the tests stand in it
    return Toolchain(
        "JavaScript",
        f"{manager} test" if tested else None,
        name=str(package.get("name", "")).rpartition("/")[2],
        setup=(install,) if needs else (),
        env={"CI": "true"},  # without it, some test runners wait for changes instead of ending
        protected=tuple(protected),
    )


def scripts(tree: SourceTree) -> Mapping[str, str]:
    """The ``scripts`` of ``package.json``."""
    found: object = _package(tree).get("scripts")
    if not isinstance(found, dict):
        return {}
    return {k: v for k, v in cast("dict[str, object]", found).items() if isinstance(v, str)}


def script_command(tree: SourceTree, script: str) -> str:
    """The command that runs a script and prints nothing of its own."""
    manager = _manager(tree)[1]
    return {"npm": "npm run -s", "pnpm": "pnpm -s run", "yarn": "yarn -s run"}.get(
        manager, manager
    ) + f" {script}"


def _manager(tree: SourceTree) -> tuple[str, str, str]:
    """The lock file, the command that runs scripts, and the one that installs what the project needs."""
    found = next((m for m in _MANAGERS if tree.has(m[0])), None)
    return found or ("", "npm", "npm install --no-audit --no-fund")


def _package(tree: SourceTree) -> dict[str, Any]:
    try:
        package: object = json.loads(tree.text("package.json"))
    except ValueError:
        return {}
    return cast("dict[str, Any]", package) if isinstance(package, dict) else {}

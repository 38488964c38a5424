"""Nothing stays of the sandboxes that a benchmark made."""

from __future__ import annotations

from pathlib import Path

from race.plugins import provider


async def delete_sandboxes(home: Path) -> None:
    """Delete all sandboxes of this machine whose state is in a folder."""
    made = provider("local", home, "a benchmark")
    try:
        for info in reversed(await made.list()):
            await (await made.get(info.name)).delete()
    finally:
        await made.aclose()

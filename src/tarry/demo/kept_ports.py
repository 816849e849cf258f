"""The ports of a kept installation: the same at every start, unless somebody else has taken one meanwhile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

FILE = "ports.json"
FIRST = {"HTTP": 8086}
"""What is tried at the first start."""


def read(folder: Path | None) -> dict[str, int]:
    """By name, as the last start left them. A file that cannot be read counts as none."""
    if folder is None:
        return {}
    try:
        kept = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        kept = {}
    found = kept if isinstance(kept, dict) else {}
    return FIRST | {name: port for name, port in found.items() if isinstance(port, int)}


def keep(folder: Path | None, before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Writes them down for the next start; returns a line for each that is not what it was."""
    if folder is None:
        return []
    (folder / FILE).write_text(json.dumps({**before, **now}))
    return [
        f"The {name} port was {before[name]}, which is in use; it is {port} now."
        for name, port in now.items()
        if before.get(name, port) != port
    ]

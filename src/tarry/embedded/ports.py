"""Finds free loopback ports, below the range that the kernel assigns to outgoing connections.

A port from that range is not safe: while the service on it is down, a client that keeps trying to connect may be
assigned the same port as its own local port and connect to itself.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LOWEST, HIGHEST = 20_000, 32_700
ATTEMPTS = 1000


def free(count: int) -> list[int]:
    """Different free ports, `count` of them."""
    return again([None] * count)


def again(before: Sequence[int | None]) -> list[int]:
    """The same ports if they are free, and a new one for each that is not; all stay bound until all are found."""
    with contextlib.ExitStack() as held:
        found = [port if port is not None and is_free(port, held) else None for port in before]
        for place, port in enumerate(found):
            if port is None:
                found[place] = _another(found, held)
        return [port for port in found if port is not None]


def _another(than: Sequence[int | None], held: contextlib.ExitStack) -> int:
    """Skips ports that are already chosen: a port that is bound but not listening would look free."""
    for _ in range(ATTEMPTS):
        port = random.randint(LOWEST, HIGHEST)
        if port not in than and is_free(port, held):
            return port
    raise OSError(f"no free port between {LOWEST} and {HIGHEST} on 127.0.0.1")


def read(file: Path, count: int) -> list[int | None]:
    """The ports saved by `write`; None for each if they cannot be read."""
    try:
        kept = json.loads(file.read_text())
    except (OSError, ValueError):
        kept = None
    if isinstance(kept, list) and len(kept) == count and all(isinstance(port, int) for port in kept):
        return list(kept)
    return [None] * count


def write(file: Path, ports: Sequence[int]) -> None:
    file.write_text(json.dumps(ports))


def is_free(port: int, held: contextlib.ExitStack | None = None) -> bool:
    """With `held`, the port stays bound until that stack is closed."""
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind(("127.0.0.1", port))
    except OSError:
        probe.close()
        return False
    if held is None:
        probe.close()
    else:
        held.callback(probe.close)
    return True

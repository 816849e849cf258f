"""Free loopback ports, below the range the kernel hands to outgoing connections.

A port from that range would be a trap: while the service on it is down, a client that keeps trying to connect may be
given the very same port as its own and find itself connected to itself.
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
    """That many different ports."""
    return again([None] * count)


def again(before: Sequence[int | None]) -> list[int]:
    """The same ports where they are free, and another one for each that is not; all held until all are found."""
    with contextlib.ExitStack() as held:
        found = [port if port is not None and is_free(port, held) else None for port in before]
        for place, port in enumerate(found):
            if port is None:
                found[place] = _another(found, held)
        return [port for port in found if port is not None]


def _another(than: Sequence[int | None], held: contextlib.ExitStack) -> int:
    """One of ours that is only bound would look free."""
    for _ in range(ATTEMPTS):
        port = random.randint(LOWEST, HIGHEST)
        if port not in than and is_free(port, held):
            return port
    raise OSError(f"no free port between {LOWEST} and {HIGHEST} on 127.0.0.1")


def read(file: Path, count: int) -> list[int | None]:
    """The ports that `write` kept there; None for each if there are none to be read."""
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
    """With `held`, the port stays bound for as long as that stack is open."""
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

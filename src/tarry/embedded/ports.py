"""Free loopback ports, below the range the kernel hands to outgoing connections.

A port from that range would be a trap: while the service on it is down, a client that keeps trying to connect may be
given the very same port as its own and find itself connected to itself.
"""

from __future__ import annotations

import contextlib
import random
import socket

LOWEST, HIGHEST = 20_000, 32_700
ATTEMPTS = 1000


def free(count: int) -> list[int]:
    """That many different ports, all held until all are found."""
    with contextlib.ExitStack() as held:
        found: list[int] = []
        for _ in range(ATTEMPTS):
            if len(found) == count:
                return found
            port = random.randint(LOWEST, HIGHEST)
            if port not in found and is_free(port, held):
                found.append(port)
    raise OSError(f"no free port between {LOWEST} and {HIGHEST} on 127.0.0.1")


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

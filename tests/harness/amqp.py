"""Connections of pika's that leave nothing behind, however they end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pika
from pika.exceptions import AMQPError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def open_connection(where: str | pika.connection.Parameters) -> Iterator[pika.BlockingConnection]:
    connection = pika.BlockingConnection(pika.URLParameters(where) if isinstance(where, str) else where)
    try:
        yield connection
    finally:
        let_go(connection)


def let_go(connection: pika.BlockingConnection) -> None:
    """Closes it whatever became of it: cut, closed by the broker, or dead and nobody has noticed.

    pika closes the sockets of its loop when it is the first to find out, and otherwise leaves them to the garbage
    collector, whose complaint then fails whichever test happens to be running.
    """
    with contextlib.suppress(AMQPError):
        if connection.is_open:
            connection.close()
    pikas_own: Any = connection
    pikas_own._cleanup()

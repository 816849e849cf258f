"""pika connections that leave no open socket behind, however they end."""

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
        close_connection(connection)


def close_connection(connection: pika.BlockingConnection) -> None:
    """Closes it in any state: open, cut, closed by the broker, or dead without notice.

    pika closes the sockets of its loop only if it notices the end first. Otherwise the garbage collector closes them,
    and its warning fails the test that happens to run.
    """
    with contextlib.suppress(AMQPError):
        if connection.is_open:
            connection.close()
    pikas_own: Any = connection
    pikas_own._cleanup()

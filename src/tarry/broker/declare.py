"""Declaring over AMQP, one short-lived blocking connection at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, AMQPError, ProbableAccessDeniedError, ProbableAuthenticationError

from tarry.broker.address import Address
from tarry.errors import BrokerError, BrokerUnreachableError


@contextmanager
def channel(address: Address, purpose: str) -> Iterator[BlockingChannel]:
    """A channel on a connection of its own; both are closed at the end, broken or not."""
    connection = connect(address, purpose)
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def connect(address: Address, purpose: str) -> pika.BlockingConnection:
    """A blocking connection, or an error that says what to do."""
    try:
        return pika.BlockingConnection(address.parameters(purpose))
    except (ProbableAuthenticationError, ProbableAccessDeniedError) as error:
        raise BrokerError(
            f"{address} refused the login: check user, password and vhost in RABBITMQ_URL "
            f"(rabbitmqctl list_permissions -p {address.vhost})."
        ) from error
    except (AMQPConnectionError, OSError) as error:
        raise BrokerUnreachableError(f"No broker answers at {address}: {_reason(error)}.") from error


def _reason(error: BaseException) -> str:
    """Pika wraps the cause several times and most layers print empty."""
    seen: BaseException | None = error
    while seen is not None:
        for part in (*seen.args, seen):
            inner = getattr(part, "exception", part)
            if isinstance(inner, OSError):
                return str(inner)
        seen = seen.__cause__ or seen.__context__
    return str(error) or type(error).__name__


__all__ = ["AMQPError", "channel", "connect"]

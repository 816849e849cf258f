"""Short-lived blocking connections for declarations, and readable errors for what the broker refuses."""

from __future__ import annotations

import re
import shlex
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPConnectionError,
    AMQPError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from tarry.amqp.tls import distrusted
from tarry.amqp.url import Address
from tarry.errors import BrokerError, BrokerUnreachableError, TopologyMismatchError

ACCESS_REFUSED = 403
NOT_FOUND = 404
PRECONDITION_FAILED = 406


@dataclass(frozen=True, slots=True)
class Rights:
    """The three patterns of `rabbitmqctl set_permissions`."""

    configure: str
    write: str
    read: str

    def __str__(self) -> str:
        return " ".join(map(shlex.quote, (self.configure, self.write, self.read)))


@contextmanager
def channel(address: Address, purpose: str, needed: Rights | None = None) -> Iterator[BlockingChannel]:
    """A channel on its own connection, which is always closed at the end.

    `needed` are the permissions that the error message names if one is missing.
    """
    connection = connect(address, purpose)
    try:
        with explained(address, needed):
            yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def connect(address: Address, purpose: str) -> pika.BlockingConnection:
    """Open a blocking connection, or raise an error that says what to do."""
    try:
        return pika.BlockingConnection(address.parameters(purpose))
    except ProbableAuthenticationError as error:
        raise BrokerError(f"{address} refused the login: check user and password in RABBITMQ_URL.") from error
    except (ProbableAccessDeniedError, ConnectionClosedByBroker) as error:
        raise _kept_out(address, str(error)) from error
    except (AMQPConnectionError, OSError) as error:
        cause = _cause(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise distrusted(address, cause) from error
        raise BrokerUnreachableError(f"No broker answers at {address}: {_reason(error)}.") from error


def _kept_out(address: Address, text: str) -> BrokerError:
    """The error for a user who is authenticated but not admitted to the vhost."""
    vhost, user = shlex.quote(address.vhost), shlex.quote(address.user)
    if "not found" in text:
        return BrokerError(f"There is no vhost {address.vhost!r} at {address}: rabbitmqctl add_vhost {vhost}")
    if "NOT_ALLOWED" in text:
        return BrokerError(
            f"User {address.user!r} has no rights in vhost {address.vhost!r} at {address}: "
            f"rabbitmqctl set_permissions -p {vhost} {user} <configure> <write> <read>"
        )
    return BrokerError(f"{address} closed the connection: {text}")


@contextmanager
def explained(address: Address, needed: Rights | None = None) -> Iterator[None]:
    """Turn a refusal by the broker into an error that says what is missing and how to grant it."""
    try:
        yield
    except ChannelClosedByBroker as error:
        raise refusal(address, error.reply_code, error.reply_text, needed) from error
    except ConnectionClosedByBroker as error:
        raise BrokerError(f"{address} closed the connection: {error.reply_text}") from error
    except AMQPConnectionError as error:
        raise BrokerUnreachableError(
            f"The connection to {address} was lost: {_reason(error)}. Run it again."
        ) from error


def refusal(address: Address, code: int, text: str, needed: Rights | None = None) -> BrokerError:
    """The error for a channel that the broker closed: its reply text and what to do about it."""
    if code == ACCESS_REFUSED:
        return BrokerError(_missing_right(address, text, needed))
    if code == PRECONDITION_FAILED:
        return TopologyMismatchError(
            f"Something is declared differently at {address}: {_without_code(text)}. "
            "See `tarry topology plan` for what differs and how to migrate."
        )
    if code == NOT_FOUND:
        return BrokerError(f"{address} lacks something: {_without_code(text)}. Run `tarry topology apply` first.")
    return BrokerError(f"{address} refused: {text}")


def _missing_right(address: Address, text: str, needed: Rights | None) -> str:
    """RabbitMQ 4.x names the missing permission (`configure access to queue …`), 3.x does not."""
    found = re.search(r"(?:(configure|write|read) )?access to (queue|exchange|topic) '(.*)' in vhost", text)
    if found is None:
        return f"{address} refused: {_without_code(text)}"
    right, kind, name = found.groups()
    lacks = f"`{right}`" if right else "a right (`configure` to declare it, `write` and `read` to bind it)"
    vhost, user = shlex.quote(address.vhost), shlex.quote(address.user)
    return (
        f"User {address.user!r} lacks {lacks} on {kind} {name!r} in vhost {address.vhost!r}. An administrator gives "
        f"it with: rabbitmqctl set_permissions -p {vhost} {user} {needed or '<configure> <write> <read>'}"
    )


def _without_code(text: str) -> str:
    return text.partition(" - ")[2] or text


def _reason(error: BaseException) -> str:
    """The text of the underlying error: most of pika's wrapping exceptions print as empty."""
    cause = _cause(error)
    return str(error if cause is None else cause) or type(error).__name__


def _cause(error: BaseException) -> OSError | None:
    """The underlying OSError, which pika wraps several times."""
    seen: BaseException | None = error
    while seen is not None:
        for part in (*seen.args, seen):
            inner = getattr(part, "exception", part)
            if isinstance(inner, OSError):
                return inner
        seen = seen.__cause__ or seen.__context__
    return None


__all__ = ["AMQPError", "Rights", "channel", "connect", "explained", "refusal"]

"""From a delivery in `retry.scheduled` to one `Request`, whichever of the three forms it came in.

A delivery that cannot be understood is `Refused` with a reason, and goes to review whole: it is never dropped.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from tarry.contract import headers as h
from tarry.contract.deaths import Death, last_death
from tarry.contract.envelope import Envelope, is_envelope, open_envelope
from tarry.contract.fields import BadTableError, walk
from tarry.contract.properties import Properties
from tarry.contract.reading import FAR_FUTURE_MS, HeaderReader, RefusalError, sane
from tarry.core.decide import Failure
from tarry.core.names import LONGEST_NAME, RESERVED, Names
from tarry.core.policy import MOST_RETRIES, ErrorClass

NAMESPACE = uuid.UUID("5b0f2c1e-6d0c-5b7e-9f0a-7a7272790001")
"""Of retry ids: UUIDv5 of (message id, origin queue)."""

MOST_ROUNDS = 1_000_000

Form = Literal["reject", "headers", "envelope"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as the broker handed it over."""

    body: bytes
    properties: Properties
    exchange: str | bytes = ""
    routing_key: str | bytes = ""
    redelivered: bool = False
    tag: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a message failed, and how it had come there."""

    queue: str
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class Request:
    """A retry request, understood."""

    delivery: Delivery
    form: Form
    retry_id: str
    deduplicable: bool
    """Whether a repeated request would have the same id; a random one says nothing."""
    knows_round: bool
    """Whether tarry's own headers say which round just failed."""
    message_id: str | None
    origin: Origin
    failure: Failure
    body: bytes
    speaks_contract: bool
    """Whether the contract's headers on it are ours to read and rewrite, or the application's own."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A delivery that is no request, and why."""

    delivery: Delivery
    retry_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """A message of `tarry attach` that has proven its way by arriving here."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What the topology says about which requests may be acted on."""

    names: Names
    destinations: tuple[str, ...] = ("*",)
    failures: tuple[str, ...] = ("rejected", "delivery_limit")


def parse(delivery: Delivery, accept: Acceptance, new_id: Callable[[], str]) -> Request | Refused | Probe:
    """Understand one delivery; `new_id` gives an id to a message that has none."""
    try:
        headers = HeaderReader(dict(walk(delivery.properties.headers or b"")))
        if headers.has(h.PROBE):
            return Probe(delivery)
        return _request(delivery, headers, accept, new_id)
    except RefusalError as refusal:
        return Refused(delivery, new_id(), str(refusal))
    except BadTableError as error:
        return Refused(delivery, new_id(), f"the header table is broken: {error}")


def _request(delivery: Delivery, headers: HeaderReader, accept: Acceptance, new_id: Callable[[], str]) -> Request:
    form, told = _form(delivery, headers, accept.names)
    speaks_contract = form != "reject" or headers.has(h.FORM)
    origin = _origin(told, headers, accept)
    _check_key(origin.routing_key, delivery.routing_key)
    message_id = (told.message_id if isinstance(told, Envelope) else None) or _message_id(delivery.properties)
    known_id = _own_id(headers) or (retry_id(message_id, origin.queue) if message_id else None)
    return Request(
        delivery=delivery,
        form=form,
        retry_id=known_id or new_id(),
        deduplicable=known_id is not None,
        knows_round=headers.has(h.ID) and headers.has(h.ROUND),
        message_id=message_id,
        origin=origin,
        failure=_failure(origin.queue, told, headers, speaks_contract=speaks_contract),
        body=told.original_payload if isinstance(told, Envelope) else delivery.body,
        speaks_contract=speaks_contract,
    )


def retry_id(message_id: str, queue: str) -> str:
    """The same message failing in the same queue is the same retry."""
    return str(uuid.uuid5(NAMESPACE, f"{message_id}\x00{queue}"))


def _form(delivery: Delivery, headers: HeaderReader, names: Names) -> tuple[Form, Death | Envelope | None]:
    """A message that the broker dead-lettered is a bare reject, whatever headers its application gave it."""
    death = last_death(headers.fields, names)
    if death is not None and (delivery.exchange == names.intake or not headers.has(h.ORIGINAL_QUEUE)):
        return "reject", death
    if headers.has(h.ORIGINAL_QUEUE):
        return "headers", None
    if is_envelope(delivery.properties.content_type):
        return "envelope", open_envelope(delivery.properties.content_type, delivery.body)
    raise RefusalError(
        f"no origin: it was not dead-lettered, has no `{h.ORIGINAL_QUEUE}` header and is no RetryMessage envelope"
    )


def _origin(told: Death | Envelope | None, headers: HeaderReader, accept: Acceptance) -> Origin:
    if isinstance(told, Death):
        queue, exchange, key = told.queue, told.exchange, told.routing_key
        if told.reason not in accept.failures:
            raise RefusalError(f"dead-lettered as `{told.reason}` from {queue!r}, which counts as no failure")
    else:
        queue = (told.original_queue if told else headers.text(h.ORIGINAL_QUEUE)) or ""
        exchange, key = headers.text(h.ORIGINAL_EXCHANGE) or "", headers.text(h.ORIGINAL_KEY) or queue
    _check_queue(queue, accept)
    if headers.has(h.ID):
        # From the second round on x-death shows our own exchange; the true ones travel in our headers.
        exchange = _first_given(headers.text(h.EXCHANGE), exchange)
        key = _first_given(headers.text(h.KEY), key)
    return Origin(queue, exchange, key)


def _first_given(one: str | None, other: str) -> str:
    return other if one is None else one


def _check_queue(queue: str, accept: Acceptance) -> None:
    if not queue or len(queue.encode()) > LONGEST_NAME or "\x00" in queue:
        raise RefusalError(f"{queue[:40]!r} cannot be the name of an origin queue")
    if accept.names.is_ours(queue):
        raise RefusalError(f"the origin {queue!r} is a queue of tarry's or the broker's own")
    if not any(fnmatchcase(queue, glob) for glob in accept.destinations):
        raise RefusalError(f"the origin {queue!r} is outside the topology's `destinations`")


def _check_key(key: str, delivered_key: str | bytes) -> None:
    if isinstance(delivered_key, bytes):
        raise RefusalError("its routing key is not UTF-8 text")
    if key.startswith(RESERVED) or delivered_key.startswith(RESERVED):
        raise RefusalError(f"its routing key starts with {RESERVED!r}, which is reserved for tarry")
    if len(key.encode()) > LONGEST_NAME:
        raise RefusalError("its routing key is longer than 255 bytes")


def _failure(queue: str, told: Death | Envelope | None, headers: HeaderReader, *, speaks_contract: bool) -> Failure:
    """What a bare reject says is its dead-letter reason; the other forms say more."""
    failure = Failure(
        queue=queue,
        round=(headers.count(h.ROUND, MOST_ROUNDS) or 0) if headers.has(h.ID) else 0,
        retry_count=_retry_count(told, headers, speaks_contract=speaks_contract),
        first_failed_ms=headers.count(h.SINCE) if headers.has(h.ID) else None,
        max_retries=headers.count(h.MAX_RETRIES, MOST_RETRIES) if speaks_contract else None,
        priority=headers.word(h.PRIORITY) if speaks_contract else None,
        job_type=headers.word(h.JOB_TYPE) if speaks_contract else None,
    )
    if isinstance(told, Death):
        return replace(failure, error_type=told.reason)
    said = replace(
        failure,
        error_type=headers.text(h.ERROR_TYPE),
        error_reason=headers.text(h.ERROR_REASON),
        error_class=_error_class(headers.text(h.ERROR_CLASS)),
        retry_after_ms=headers.count(h.RETRY_AFTER),
        next_retry_at_ms=headers.count(h.NEXT_RETRY_AT),
    )
    return said if told is None else _with_envelope(said, told)


def _with_envelope(failure: Failure, envelope: Envelope) -> Failure:
    """What the envelope says beats a header of the same name."""
    most, due = envelope.max_retries, envelope.next_retry_at_ms
    return replace(
        failure,
        error_reason=envelope.error_reason or failure.error_reason,
        max_retries=failure.max_retries if most is None else sane(h.MAX_RETRIES, most, MOST_RETRIES),
        next_retry_at_ms=failure.next_retry_at_ms if due is None else sane(h.NEXT_RETRY_AT, due, FAR_FUTURE_MS),
    )


def _retry_count(told: Death | Envelope | None, headers: HeaderReader, *, speaks_contract: bool) -> int:
    """Our own count if our id is beside it; else what the request says. An application's `retry_count` is not ours."""
    if headers.has(h.ID) and headers.has(h.COUNT):
        return headers.count(h.COUNT, MOST_ROUNDS) or 0
    if isinstance(told, Envelope):
        return sane("retry_count", told.retry_count, MOST_RETRIES)
    return (headers.count(h.RETRY_COUNT, MOST_RETRIES) or 0) if speaks_contract else 0


def _own_id(headers: HeaderReader) -> str | None:
    text = headers.text(h.ID)
    if text is None:
        return None
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise RefusalError(f"the header `{h.ID}` is no retry id: {text[:40]!r}") from None


def _message_id(properties: Properties) -> str | None:
    """Bytes that are not UTF-8 are escaped: any id will do, as long as it stays the same; Postgres takes no NUL."""
    raw = properties.message_id
    return raw.decode(errors="backslashreplace").replace("\x00", "\\x00") if raw else None


def _error_class(text: str | None) -> ErrorClass | None:
    if text is None:
        return None
    try:
        return ErrorClass(text.lower())
    except ValueError:
        raise RefusalError(f"`{h.ERROR_CLASS}` is {text[:40]!r}: use one of {', '.join(ErrorClass)}") from None

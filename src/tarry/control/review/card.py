"""What is written on a message in the review queue, read without trusting any of it. Pure."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from tarry.contract import headers as h
from tarry.contract.fields import BadTableError, Field, pick
from tarry.contract.identity import MOST_ROUNDS, message_id_of
from tarry.contract.message import Delivery
from tarry.contract.reading import HeaderReader

Key = tuple[str, int]
"""A retry id and a round: what a message in review is known by."""

_ID, _ROUND, _REASON = h.ID.encode(), h.ROUND.encode(), h.REVIEW_REASON.encode()
_KEY = frozenset({_ID, _ROUND, _REASON})
_READ = frozenset(
    name.encode()
    for name in (
        *(h.ID, h.ROUND, h.COUNT, h.QUEUE, h.EXCHANGE, h.KEY, h.SINCE, h.FORM, h.REVIEW_REASON),
        *(h.ERROR_TYPE, h.ERROR_REASON, h.PRIORITY, h.JOB_TYPE, h.MAX_RETRIES, h.ORIGINAL_QUEUE),
    )
)


@dataclass(frozen=True, slots=True)
class Card:
    """None and empty where nothing, or nothing readable, is written."""

    key: Key | None
    message_id: str | None
    queue: str = ""
    """The origin; empty on a message that could not be understood, or that somebody else put there."""
    exchange: str = ""
    routing_key: str = ""
    reason: str | None = None
    retry_count: int = 0
    max_retries: int | None = None
    since_ms: int | None = None
    contract: bool = False
    error_type: str | None = None
    error_reason: str | None = None
    priority: str | None = None
    job_type: str | None = None
    names_queue: bool = False
    """Whether its request named its queue in a header: then only tarry's own content type makes it an envelope."""


def key_of(delivery: Delivery) -> Key | None:
    """Only who it is: asked of every message in the queue."""
    try:
        return _key(pick(delivery.properties.headers or b"", _KEY))
    except BadTableError:
        return None


def read_card(delivery: Delivery) -> Card:
    message_id = message_id_of(delivery.properties)
    try:
        found = pick(delivery.properties.headers or b"", _READ)
    except BadTableError:
        return Card(None, message_id)
    contract = h.FORM.encode() in found
    key = _text(found, h.KEY)
    delivered = delivery.routing_key if isinstance(delivery.routing_key, str) else ""
    return Card(
        key=_key(found),
        message_id=message_id,
        queue=_text(found, h.QUEUE) or "",
        exchange=_text(found, h.EXCHANGE) or "",
        routing_key=delivered if key is None else key,
        reason=_text(found, h.REVIEW_REASON),
        retry_count=_count(found, h.COUNT) or 0,
        max_retries=_count(found, h.MAX_RETRIES) if contract else None,
        since_ms=_count(found, h.SINCE),
        contract=contract,
        error_type=_text(found, h.ERROR_TYPE),
        error_reason=_text(found, h.ERROR_REASON),
        priority=_word(found, h.PRIORITY) if contract else None,
        job_type=_word(found, h.JOB_TYPE) if contract else None,
        names_queue=HeaderReader(found).states(h.ORIGINAL_QUEUE),
    )


def _key(found: dict[bytes, Field]) -> Key | None:
    """Without a reason it was not put there by tarry: an id on it is of an earlier round."""
    if _REASON not in found:
        return None
    retry_id = found[_ID].text() if _ID in found else None
    round_ = found[_ROUND].integer() if _ROUND in found else None
    if retry_id is None or round_ is None or not 0 <= round_ <= MOST_ROUNDS:
        return None
    try:
        return str(uuid.UUID(retry_id)), round_
    except ValueError:
        return None


def _text(found: dict[bytes, Field], name: str) -> str | None:
    field = found.get(name.encode())
    return field.text() if field is not None else None


def _count(found: dict[bytes, Field], name: str) -> int | None:
    field = found.get(name.encode())
    number = field.integer() if field is not None else None
    return number if number is not None and number >= 0 else None


def _word(found: dict[bytes, Field], name: str) -> str | None:
    field = found.get(name.encode())
    number = field.integer() if field is not None and field.text() is None else None
    return str(number) if number is not None else _text(found, name)

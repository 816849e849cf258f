"""A delivery that cannot be understood, with what can be read of it all the same."""

from __future__ import annotations

import contextlib

from tarry.contract import headers as h
from tarry.contract.checks import can_name_queue, is_name
from tarry.contract.deaths import Death
from tarry.contract.envelope import Envelope, glimpse
from tarry.contract.fields import BadTableError, are_too_many, pick, scan
from tarry.contract.form import Told, read_form, stated_origin
from tarry.contract.identity import message_id_of
from tarry.contract.message import NO_ORIGIN, Acceptance, Delivery, Origin, Refused
from tarry.contract.reading import LenientReader, RefusalError
from tarry.core.names import RESERVED


def refused(delivery: Delivery, retry_id: str, reason: str, accept: Acceptance | None) -> Refused:
    """Never fails: what cannot be read is left out. Without an `Acceptance` it is no request but a copy or a report: it
    gets no origin, so that a redrive sends it nowhere.
    """
    message_id, origin, contract = message_id_of(delivery.properties), NO_ORIGIN, False
    if accept is not None:
        with contextlib.suppress(Exception):  # the delivery has to reach a person, whatever is wrong with it
            message_id, origin, contract = _read(delivery, accept)
    return Refused(delivery, retry_id, _printable(reason), message_id, origin, contract)


def _read(delivery: Delivery, accept: Acceptance) -> tuple[str | None, Origin, bool]:
    """Message id, origin, and whether the request was made by headers or envelope."""
    headers = _headers(delivery)
    small = delivery if len(delivery.body) <= accept.largest_body else delivery._replace(body=b"")
    told = _told(small, headers, accept)
    message_id = told.message_id if isinstance(told, Envelope) else None
    if message_id is None or not is_name(message_id):
        message_id = message_id_of(delivery.properties)
    stated = stated_origin(told, headers)
    queue, returned_to = stated.queue or headers.text(h.QUEUE) or "", headers.text(h.QUEUE)
    if not can_name_queue(queue):
        return message_id, NO_ORIGIN, False
    by_contract = (stated.queue and not isinstance(told, Death)) or (headers.has(h.FORM) and queue == returned_to)
    return message_id, _sound(_first(stated, headers) if queue == returned_to else stated, queue), bool(by_contract)


def _first(stated: Origin, headers: LenientReader) -> Origin:
    """From the second round on tarry's own headers know the first exchange and key."""
    exchange, key = headers.text(h.EXCHANGE), headers.text(h.KEY)
    return Origin(
        stated.queue, stated.exchange if exchange is None else exchange, stated.routing_key if key is None else key
    )


def _sound(origin: Origin, queue: str) -> Origin:
    """With an exchange and a key that a message can be sent by."""
    key = origin.routing_key
    exchange = origin.exchange if is_name(origin.exchange) else ""
    return Origin(queue, exchange, queue if not is_name(key) or key.startswith(RESERVED) else key)


def _headers(delivery: Delivery) -> LenientReader:
    table = delivery.properties.headers or b""
    try:
        entries = scan(table)
        return LenientReader({} if are_too_many(entries) else pick(table, h.READ, entries))
    except BadTableError:
        return LenientReader({})


def _told(delivery: Delivery, headers: LenientReader, accept: Acceptance) -> Told:
    try:
        return read_form(delivery, headers, accept.names)[1]
    except (RefusalError, BadTableError):
        return glimpse(delivery.properties.content_type, delivery.body)


def _printable(reason: str) -> str:
    """Reasons quote what they complain about; neither Postgres nor UTF-8 takes all that can stand there."""
    return reason.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()

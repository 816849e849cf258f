"""Which of the three forms a request is in, and the origin that it states."""

from __future__ import annotations

from tarry.contract import headers as h
from tarry.contract.deaths import Death, last_death
from tarry.contract.envelope import Envelope, is_envelope, is_surely_envelope, open_envelope
from tarry.contract.message import Delivery, Form, Origin
from tarry.contract.reading import HeaderReader, RefusalError
from tarry.core.names import Names

Told = Death | Envelope | None
"""What each of the three forms says beside the headers."""

_DEATHS = h.DEATHS.encode()


def read_form(delivery: Delivery, headers: HeaderReader, names: Names) -> tuple[Form, Told]:
    """A message that the broker dead-lettered from an attached queue is a bare reject, whatever its application put on
    it; tarry's own content type says for certain that the body is an envelope.
    """
    content_type = delivery.properties.content_type
    death = last_death(headers.fields.get(_DEATHS), names, headers.decoding)
    if death is not None and delivery.exchange == names.intake:
        return "reject", death
    if is_surely_envelope(content_type):
        return "envelope", open_envelope(content_type, delivery.body)
    if headers.states(h.ORIGINAL_QUEUE):
        return "headers", None
    if death is not None:
        return "reject", death
    if is_envelope(content_type):
        return "envelope", open_envelope(content_type, delivery.body)
    raise RefusalError(
        f"no origin: it was not dead-lettered, has no `{h.ORIGINAL_QUEUE}` header and is no RetryMessage envelope"
    )


def stated_origin(told: Told, headers: HeaderReader) -> Origin:
    """Not checked; the queue is empty where none is named."""
    if isinstance(told, Death):
        return Origin(told.queue, told.exchange, told.routing_key)
    queue = (told.original_queue if told else "") or headers.text(h.ORIGINAL_QUEUE) or ""
    return Origin(queue, headers.text(h.ORIGINAL_EXCHANGE) or "", headers.text(h.ORIGINAL_KEY) or queue)

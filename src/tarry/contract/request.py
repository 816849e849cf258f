"""From a delivery in `retry.scheduled` to one `Request`, whichever of the three forms it came in.

A delivery that cannot be understood is `Refused` with a reason, and goes to review whole: it is never dropped.
"""

from __future__ import annotations

from collections.abc import Callable

from tarry.contract import headers as h
from tarry.contract.checks import check_delivered_key, check_origin, check_size
from tarry.contract.deaths import Death, deaths
from tarry.contract.envelope import Envelope
from tarry.contract.fields import MOST_OWN, BadTableError, Entry, are_too_many, pick, scan
from tarry.contract.form import Told, read_form, stated_origin
from tarry.contract.identity import MOST_ROUNDS, Own, content_identity, message_id_of, read_own, retry_id
from tarry.contract.message import Acceptance, Delivery, Form, Origin, Probe, Refused, Request
from tarry.contract.reading import HeaderReader, RefusalError, sane, sane_moment
from tarry.contract.refusal import refused
from tarry.core.decide import Failure
from tarry.core.names import LONGEST_NAME, Names
from tarry.core.policy import MOST_RETRIES, ErrorClass, folded

_DEATHS = h.DEATHS.encode()

MOST_KEPT = 256
"""Places in a header table that are worth remembering. A table of tiny entries takes seventy times its own size when it
is taken apart, and a batch of such tables a gigabyte."""


def parse(delivery: Delivery, accept: Acceptance, new_id: Callable[[], str]) -> Request | Refused | Probe:
    """Understand one delivery; `new_id` gives an id to a message that has none."""
    try:
        table = delivery.properties.headers or b""
        entries = scan(table)
        if are_too_many(entries):
            raise BadTableError(f"it has more than {MOST_OWN} entries")  # noqa: TRY301 - told in one place
        headers = HeaderReader(pick(table, h.READ, entries))
        if headers.has(h.PROBE) and _is_probe(headers, accept.names):
            return Probe(delivery)
        return _request(delivery, headers, entries, accept, new_id)
    except RefusalError as refusal:
        return refused(delivery, new_id(), str(refusal), accept)
    except BadTableError as error:
        return refused(delivery, new_id(), f"the header table is broken: {error}", accept)


def _is_probe(headers: HeaderReader, names: Names) -> bool:
    """It died in the probe's own queue, where no application's message can be: nobody else's is taken for one."""
    died_in = next((death.queue for death in deaths(headers.fields.get(_DEATHS))), "")
    return died_in.startswith(f"{names.prefix}probe.") and headers.text(h.PROBE) == died_in


def _request(
    delivery: Delivery, headers: HeaderReader, entries: list[Entry], accept: Acceptance, new_id: Callable[[], str]
) -> Request:
    check_size(delivery, accept)
    check_delivered_key(delivery.routing_key)
    form, told = read_form(delivery, headers, accept.names)
    origin, own = _origin(told, headers, accept)
    speaks_contract = form != "reject" or (own is not None and own.contract)
    message_id = _message_id(told, delivery)
    envelope = isinstance(told, Envelope)
    body = told.original_payload if isinstance(told, Envelope) else delivery.body
    identity = content_identity(
        origin.queue,
        message_id,
        body,
        delivery.properties,
        entries,
        contract=speaks_contract,
        envelope=envelope,
    )
    death = told.stamp if isinstance(told, Death) else None
    known_id, deduplicable = _retry_id(own, message_id, origin.queue, identity, death)
    return Request(
        delivery=delivery,
        form=form,
        retry_id=known_id or new_id(),
        deduplicable=deduplicable,
        knows_round=own is not None and own.retry_id is not None,
        message_id=message_id,
        origin=origin,
        failure=_failure(origin.queue, told, headers, own, speaks_contract=speaks_contract),
        body=body,
        speaks_contract=speaks_contract,
        identity=identity,
        death=death,
        entries=entries if len(entries) <= MOST_KEPT else None,
    )


def _retry_id(
    own: Own | None, message_id: str | None, queue: str, identity: str, death: str | None
) -> tuple[str | None, bool]:
    """The id that is known, or that a new retry would have; and whether its identity can recognise it. Two equal
    messages that were dead-lettered at different times are two: their ids differ.
    """
    if own is not None and own.retry_id is not None:
        return own.retry_id, True
    if message_id is not None:
        return retry_id(identity, death or ""), True
    return (retry_id(own.sender_id, queue) if own is not None else None), False


def _origin(told: Told, headers: HeaderReader, accept: Acceptance) -> tuple[Origin, Own | None]:
    """From the second round on x-death shows our own exchange; the true ones travel in our headers."""
    queue, exchange, key = stated_origin(told, headers)
    if isinstance(told, Death) and told.reason not in accept.failures:
        raise RefusalError(f"dead-lettered as {told.reason[:40]!r} from {queue!r}, which counts as no failure")
    if isinstance(told, Envelope) and not queue:
        raise RefusalError("the RetryMessage envelope names no original_queue")
    own = read_own(headers, queue)
    if own is not None:
        exchange = exchange if own.exchange is None else own.exchange
        key = key if own.routing_key is None else own.routing_key
    origin = Origin(queue, exchange, key)
    check_origin(origin, accept)
    return origin, own


def _message_id(told: Told, delivery: Delivery) -> str | None:
    """The envelope's own; it must fit where it will stand when the message returns."""
    if not isinstance(told, Envelope) or told.message_id is None:
        return message_id_of(delivery.properties)
    if len(told.message_id.encode()) > LONGEST_NAME or "\x00" in told.message_id:
        raise RefusalError(f"`message_id` must have at most {LONGEST_NAME} bytes and no NUL: {told.message_id[:40]!r}")
    return told.message_id


def _failure(queue: str, told: Told, headers: HeaderReader, own: Own | None, *, speaks_contract: bool) -> Failure:
    """What a bare reject says is its dead-letter reason; the other forms say more."""
    envelope = told if isinstance(told, Envelope) else None
    silent = isinstance(told, Death)
    return Failure(
        queue=queue,
        round=own.round if own else 0,
        retry_count=own.retry_count if own else _claimed_count(envelope, headers) if speaks_contract else 0,
        first_failed_ms=own.since_ms if own else None,
        max_retries=_max_retries(envelope, headers) if speaks_contract else None,
        error_type=told.reason if isinstance(told, Death) else headers.text(h.ERROR_TYPE),
        error_reason=None if silent else _error_reason(envelope, headers),
        error_class=None if silent else _error_class(headers.text(h.ERROR_CLASS)),
        retry_after_ms=None if silent else headers.count(h.RETRY_AFTER),
        next_retry_at_ms=None if silent else _next_retry_at(envelope, headers),
        priority=headers.word(h.PRIORITY) if speaks_contract else None,
        job_type=headers.word(h.JOB_TYPE) if speaks_contract else None,
    )


def _claimed_count(envelope: Envelope | None, headers: HeaderReader) -> int:
    """What the envelope says beats a header of the same name, here and below."""
    if envelope is not None:
        return sane(h.RETRY_COUNT, envelope.retry_count, MOST_RETRIES)
    return headers.count(h.RETRY_COUNT, MOST_RETRIES) or 0


def _max_retries(envelope: Envelope | None, headers: HeaderReader) -> int | None:
    if envelope is not None and envelope.max_retries is not None:
        return sane(h.MAX_RETRIES, envelope.max_retries, MOST_RETRIES)
    return headers.count(h.MAX_RETRIES, MOST_RETRIES)


def _error_reason(envelope: Envelope | None, headers: HeaderReader) -> str | None:
    return (envelope.error_reason if envelope is not None else None) or headers.text(h.ERROR_REASON)


def _next_retry_at(envelope: Envelope | None, headers: HeaderReader) -> int | None:
    if envelope is not None and envelope.next_retry_at_ms is not None:
        return sane_moment(h.NEXT_RETRY_AT, envelope.next_retry_at_ms)
    return headers.moment(h.NEXT_RETRY_AT)


def _error_class(text: str | None) -> ErrorClass | None:
    if text is None:
        return None
    try:
        return ErrorClass(folded(text))
    except ValueError:
        raise RefusalError(f"`{h.ERROR_CLASS}` is {text[:40]!r}: use one of {', '.join(ErrorClass)}") from None


__all__ = [
    "MOST_ROUNDS",
    "Acceptance",
    "Delivery",
    "Form",
    "Origin",
    "Probe",
    "Refused",
    "Request",
    "parse",
    "retry_id",
]

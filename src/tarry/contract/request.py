"""Parses a delivery from `retry.scheduled`, in any of the three forms, into a `Request`.

A delivery that is not a valid request becomes a `Refused` with a reason, and goes to review whole: it is never dropped.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import MOST_OWN, BadTableError, Entry, are_too_many, pick, scan
from tarry.contract import headers as h
from tarry.contract.checks import check_delivered_key, check_origin, check_size
from tarry.contract.deaths import Death, deaths
from tarry.contract.envelope import Envelope, RequestSource, read_form, stated_origin
from tarry.contract.header_reader import LONGEST_OWNER, HeaderReader, RefusalError, sane, sane_moment, usable_owner
from tarry.contract.identity import content_identity, message_id_of, retry_id
from tarry.contract.message import Acceptance, Form, Origin, Probe, Refused, Request
from tarry.contract.retry_headers import RetryHeaders, priority_of, read_retry_headers
from tarry.contract.review import refused
from tarry.contract.trace import trace_of
from tarry.core.decide import Failure
from tarry.core.names import LONGEST_NAME, Names
from tarry.core.policy import MOST_RETRIES, ErrorClass, folded

log = structlog.get_logger()

_DEATHS = h.DEATHS.encode()

MOST_KEPT = 256
"""Most header table entries that a request keeps. A table of tiny entries takes seventy times its own size once
scanned, and a batch of such tables a gigabyte."""


def parse(delivery: Delivery, accept: Acceptance, new_id: Callable[[], str]) -> Request | Refused | Probe:
    """Parse one delivery; `new_id` makes a retry id for a message that has none."""
    try:
        table = delivery.properties.headers or b""
        entries = scan(table)
        if are_too_many(entries):
            raise BadTableError(f"it has more than {MOST_OWN} entries")  # noqa: TRY301 - reported in one place
        headers = HeaderReader(pick(table, h.READ, entries))
        if headers.has(h.PROBE) and _is_probe(headers, accept.names):
            return Probe(delivery)
        return _request(delivery, headers, entries, accept, new_id)
    except RefusalError as refusal:
        return refused(delivery, new_id(), str(refusal), accept)
    except BadTableError as error:
        return refused(delivery, new_id(), f"the header table is broken: {error}", accept)


def _is_probe(headers: HeaderReader, names: Names) -> bool:
    """Whether it died in the probe's own queue. No application message can be there, so none is taken for a probe."""
    died_in = next((death.queue for death in deaths(headers.fields.get(_DEATHS))), "")
    found = names.parse(died_in)
    return found is not None and found.kind == "probe" and headers.text(h.PROBE) == died_in


def _request(
    delivery: Delivery, headers: HeaderReader, entries: list[Entry], accept: Acceptance, new_id: Callable[[], str]
) -> Request:
    check_size(delivery, accept)
    check_delivered_key(delivery.routing_key)
    form, source = read_form(delivery, headers, accept.names)
    origin, own = _origin(source, headers, accept)
    speaks_contract = form != "reject" or (own is not None and own.contract)
    message_id = _message_id(source, delivery)
    envelope = isinstance(source, Envelope)
    body = source.original_payload if isinstance(source, Envelope) else delivery.body
    failure = _failure(origin.queue, source, headers, own, speaks_contract=speaks_contract)
    identity = content_identity(
        origin.queue,
        message_id,
        body,
        delivery.properties,
        entries,
        contract=speaks_contract,
        envelope=envelope,
        owner=failure.owner,
    )
    death = source.stamp if isinstance(source, Death) else None
    known_id, deduplicable = _retry_id(own, message_id, origin.queue, identity, death)
    return Request(
        delivery=delivery,
        form=form,
        retry_id=known_id or new_id(),
        deduplicable=deduplicable,
        knows_round=own is not None and own.queue == origin.queue,
        message_id=message_id,
        origin=origin,
        failure=failure,
        body=body,
        priority=priority_of(own, delivery.properties.priority),
        speaks_contract=speaks_contract,
        identity=identity,
        death=death,
        entries=entries if len(entries) <= MOST_KEPT else None,
        trace=trace_of(headers.fields),
    )


def _retry_id(
    own: RetryHeaders | None, message_id: str | None, queue: str, identity: str, death: str | None
) -> tuple[str | None, bool]:
    """The known id, or the id of a new retry; and whether its identity can reveal a duplicate. Two equal messages that
    were dead-lettered at different times are two retries: their ids differ.
    """
    if own is not None and own.queue == queue:
        return own.strict_id(), True
    if message_id is not None:
        return retry_id(identity, death or ""), True
    return (retry_id(own.strict_id(), queue) if own is not None else None), False


def _origin(source: RequestSource, headers: HeaderReader, accept: Acceptance) -> tuple[Origin, RetryHeaders | None]:
    """The origin of a request, and tarry's own headers.

    From the second round on, x-death shows tarry's own exchange; tarry's headers carry the original exchange and key.
    """
    queue, exchange, key = stated_origin(source, headers)
    if isinstance(source, Death) and source.reason not in accept.failures:
        raise RefusalError(f"dead-lettered as {source.reason[:40]!r} from {queue!r}, which does not count as a failure")
    if isinstance(source, Envelope) and not queue:
        raise RefusalError("the RetryMessage envelope names no original_queue")
    own = _own_headers(headers, queue)
    if own is not None:
        exchange = exchange if own.exchange is None else own.exchange
        key = key if own.routing_key is None else own.routing_key
    origin = Origin(queue, exchange, key)
    check_origin(origin, accept)
    return origin, own


def _own_headers(headers: HeaderReader, queue: str) -> RetryHeaders | None:
    """The headers that tarry set when it returned the message: the request is a later round of a known retry.

    None if they are absent or refer to another queue: a message that an application forwards with all its headers is a
    new message. But one that returned through its exchange may have been routed to another queue. There it is a
    separate retry, and its count continues; otherwise two queues could pass it to each other forever.
    """
    if not headers.has(h.ID) or not headers.has(h.QUEUE):
        return None
    own = read_retry_headers(headers.fields)
    own.check(h.QUEUE)
    if own.queue != queue and not headers.has(h.VIA):
        return None
    own.strict_id()
    own.check(h.ROUND, h.COUNT, h.SINCE, h.EXCHANGE, h.KEY)
    return own


def _message_id(source: RequestSource, delivery: Delivery) -> str | None:
    """The message id, from the envelope if it has one; it must fit into the property of the returned message."""
    if not isinstance(source, Envelope) or source.message_id is None:
        return message_id_of(delivery.properties)
    if len(source.message_id.encode()) > LONGEST_NAME or "\x00" in source.message_id:
        raise RefusalError(
            f"`message_id` must have at most {LONGEST_NAME} bytes and no NUL: {source.message_id[:40]!r}"
        )
    return source.message_id


def _failure(
    queue: str, source: RequestSource, headers: HeaderReader, own: RetryHeaders | None, *, speaks_contract: bool
) -> Failure:
    """The failure as stated by the request; a bare reject states only its dead-letter reason."""
    envelope = source if isinstance(source, Envelope) else None
    silent = isinstance(source, Death)
    return Failure(
        queue=queue,
        round=(own.round or 0) if own else 0,
        retry_count=(own.retry_count or 0) if own else _claimed_count(envelope, headers) if speaks_contract else 0,
        first_failed_ms=own.since_ms if own else None,
        max_retries=_max_retries(envelope, headers) if speaks_contract else None,
        error_type=source.reason if isinstance(source, Death) else headers.text(h.ERROR_TYPE),
        error_reason=None if silent else _error_reason(envelope, headers),
        error_class=None if silent else _error_class(headers.text(h.ERROR_CLASS)),
        retry_after_ms=None if silent else headers.count(h.RETRY_AFTER),
        next_retry_at_ms=None if silent else _next_retry_at(envelope, headers),
        import_due_ms=None if silent else headers.moment(h.IMPORT_DUE),
        priority=headers.word(h.PRIORITY) if speaks_contract else None,
        job_type=headers.word(h.JOB_TYPE) if speaks_contract else None,
        owner=_owner(queue, envelope, headers) if speaks_contract else None,
    )


def _claimed_count(envelope: Envelope | None, headers: HeaderReader) -> int:
    """The envelope takes precedence over a header of the same name, here and below."""
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


def _owner(queue: str, envelope: Envelope | None, headers: HeaderReader) -> str | None:
    in_envelope = envelope.owner if envelope is not None else None
    owner = usable_owner(lambda: in_envelope) or headers.owner()
    if owner is None and (in_envelope or headers.states(h.OWNER)):
        why = f"it must be text of at most {LONGEST_OWNER} characters without NUL, or a number"
        log.warning("owner ignored", queue=queue, reason=why)
    return owner


def _error_class(text: str | None) -> ErrorClass | None:
    if text is None:
        return None
    try:
        return ErrorClass(folded(text))
    except ValueError:
        raise RefusalError(f"`{h.ERROR_CLASS}` is {text[:40]!r}: use one of {', '.join(ErrorClass)}") from None


__all__ = [
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

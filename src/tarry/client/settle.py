"""Decides what to do with a delivery whose handler raised."""

from __future__ import annotations

import logging
import time

from tarry.amqp.properties import Properties
from tarry.client.failure import describe, owner_of
from tarry.client.options import Options
from tarry.client.request import Incoming, request
from tarry.contract.trace import trace_of_headers

log = logging.getLogger("tarry.client")


def answer(incoming: Incoming, error: BaseException, options: Options) -> Properties | None:
    """The request to publish; None if the message should be rejected without a request."""
    now_ms = time.time_ns() // 1_000_000
    failure = describe(error, options, now_ms)
    attempt, verdict = incoming.attempt, failure.verdict
    log.warning(
        "attempt %d at message %s of queue %s failed: %s: %s",
        *(attempt.number, attempt.message_id, incoming.queue, failure.error_type, failure.error_reason),
        exc_info=error if verdict.is_plain else None,
        extra={
            "fingerprint": failure.fingerprint,
            "retry_id": attempt.retry_id,
            "error_class": verdict.error_class,
            "trace_id": _trace_id(incoming),
        },
    )
    if options.plain == "reject" and verdict.is_plain:
        return None
    return request(incoming, failure, owner=owner_of(options, incoming.headers, incoming.body))


def requeued(incoming: Incoming, why: object) -> None:
    log.error(
        "the retry request for message %s of queue %s could not be published; the message is requeued: %s",
        *(incoming.attempt.message_id, incoming.queue, why),
        extra={"retry_id": incoming.attempt.retry_id, "trace_id": _trace_id(incoming)},
    )


def _trace_id(incoming: Incoming) -> str | None:
    trace = trace_of_headers(incoming.headers)
    return None if trace is None else trace.trace_id


def unsettled(queue: str, why: object) -> None:
    """Logs a message that could not be settled. It is not lost: the broker still has it and delivers it again."""
    log.warning(
        "the connection was lost before a message of queue %s was settled; it will be redelivered: %s", queue, why
    )


def unreported(why: object) -> None:
    log.warning("some starts or successes could not be reported to tarry's audit: %s", why)

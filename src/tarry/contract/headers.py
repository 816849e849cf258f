"""The headers that tarry reads and writes, and those that it removes. docs/contract.md explains each."""

from __future__ import annotations

from tarry.core.names import ID_HEADER, ROUND_HEADER

OURS = "tarry-"
"""Prefix of tarry's own headers. They are on every returned message, and no application uses them."""

ID = ID_HEADER
ROUND = ROUND_HEADER
COUNT = "tarry-count"
MOST = "tarry-max-retries"
DUE = "tarry-due-ms"
SINCE = "tarry-since-ms"
DEADLINE = "tarry-deadline-ms"
IMPORT_DUE = "tarry-import-due-ms"
"""On the request of an import: when the wait that began elsewhere ends. Never on a message that returns."""
SCHEDULED = "tarry-scheduled-ms"
"""When its wait began; only on messages of a sampled trace, for the span of the wait."""
QUEUE = "tarry-queue"
"""The queue that tarry's headers refer to. They do not apply to a copy that was forwarded to another queue."""
EXCHANGE = "tarry-exchange"
KEY = "tarry-key"
VIA = "tarry-via"
"""On messages that return through their exchange, which may route them to another queue than the one they left."""
TIMES_UNROUTABLE = "tarry-strays"
"""How often the message was unroutable."""
LAYOVER = "tarry-layover"
"""On a message whose delay is longer than the ladder holds, until its last leg: see contract/layover.py."""
USER_ID = "tarry-user-id"
OWN_PRIORITY = "tarry-priority"
"""The message's own `priority` property, or `none`, if the policy returns it with another one."""
PROBE = "tarry-probe"
"""On test messages of `tarry attach`: the arrival of one proves that the queue is connected."""
FORM = "tarry-form"
"""On messages whose request used the contract: tarry rewrites its headers; elsewhere they are the application's."""
BROKEN = "tarry-broken-headers"
"""In the review queue: the bytes of a header table that could not be read."""

REVIEW_REASON = "review_reason"

ORIGINAL_QUEUE = "original_queue"
ORIGINAL_EXCHANGE = "original_exchange"
ORIGINAL_KEY = "original_routing_key"
RETRY_COUNT = "retry_count"
MAX_RETRIES = "max_retries"
ERROR_REASON = "error_reason"
ERROR_TYPE = "error_type"
ERROR_CLASS = "error_class"
RETRY_AFTER = "retry_after_ms"
NEXT_RETRY_AT = "next_retry_at_ms"
PRIORITY = "priority"
JOB_TYPE = "job_type"
OWNER = "owner"
"""Belongs to the message as well: it returns with it, and two messages with different owners are never one."""

DEATHS = "x-death"

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
"""Which trace a message belongs to (W3C Trace Context). The application's; tarry reads them and changes nothing."""

READ = frozenset(
    name.encode()
    for name in (
        *(ID, ROUND, COUNT, SINCE, QUEUE, EXCHANGE, KEY, VIA, OWN_PRIORITY, PROBE, FORM, DEATHS, IMPORT_DUE),
        *(ORIGINAL_QUEUE, ORIGINAL_EXCHANGE, ORIGINAL_KEY, RETRY_COUNT, MAX_RETRIES, PRIORITY, JOB_TYPE),
        *(ERROR_REASON, ERROR_TYPE, ERROR_CLASS, RETRY_AFTER, NEXT_RETRY_AT, OWNER, TRACEPARENT, TRACESTATE),
    )
)
"""All headers that tarry reads from a request."""

OF_THIS_FAILURE = frozenset({ERROR_REASON, ERROR_TYPE, ERROR_CLASS, RETRY_AFTER, NEXT_RETRY_AT, REVIEW_REASON})
"""Headers about one failure. The returned message must not have them, or they would be read for its next failure."""

CONTRACT = OF_THIS_FAILURE | {
    *(ORIGINAL_QUEUE, ORIGINAL_EXCHANGE, ORIGINAL_KEY, RETRY_COUNT, MAX_RETRIES, PRIORITY, JOB_TYPE)
}
"""All headers that can make a request; they are not part of the message to be retried."""

COPIES = frozenset({"CC", "BCC"})
"""The broker would route copies of the message by them."""

BROKERS_OWN = frozenset({DEATHS, "x-delivery-count", "x-acquired-count"}) | COPIES
"""Headers that belong to the broker. Old brokers trust an x-death set by a client and drop a message in a "cycle"."""

BROKERS_OWN_PREFIXES = ("x-first-death-", "x-last-death-")

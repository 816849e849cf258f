"""The headers that tarry reads and writes, and those that must not travel on. docs/contract.md explains each."""

from __future__ import annotations

OURS = "tarry-"
"""tarry's own headers start so. They are on every returned message, and no application uses them."""

ID = "tarry-id"
ROUND = "tarry-round"
COUNT = "tarry-count"
MOST = "tarry-max-retries"
DUE = "tarry-due-ms"
SINCE = "tarry-since-ms"
DEADLINE = "tarry-deadline-ms"
QUEUE = "tarry-queue"
"""The queue that tarry's headers speak of. In another queue, where a copy was forwarded to, they say nothing."""
EXCHANGE = "tarry-exchange"
KEY = "tarry-key"
VIA = "tarry-via"
"""On messages that return through their exchange, which may well lead them to another queue than the one they left."""
USER_ID = "tarry-user-id"
PROBE = "tarry-probe"
"""A message of `tarry attach`: it has proven its way by arriving."""
FORM = "tarry-form"
"""On messages whose request spoke the contract: there its headers are ours to rewrite, elsewhere the application's."""
BROKEN = "tarry-broken-headers"
"""In review: a header table that could not be read, as bytes."""

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

DEATHS = "x-death"

READ = frozenset(
    name.encode()
    for name in (
        *(ID, ROUND, COUNT, SINCE, QUEUE, EXCHANGE, KEY, VIA, PROBE, FORM, DEATHS),
        *(ORIGINAL_QUEUE, ORIGINAL_EXCHANGE, ORIGINAL_KEY, RETRY_COUNT, MAX_RETRIES, PRIORITY, JOB_TYPE),
        *(ERROR_REASON, ERROR_TYPE, ERROR_CLASS, RETRY_AFTER, NEXT_RETRY_AT),
    )
)
"""All that tarry reads of a request; every other header is the application's business."""

OF_THIS_FAILURE = frozenset({ERROR_REASON, ERROR_TYPE, ERROR_CLASS, RETRY_AFTER, NEXT_RETRY_AT, REVIEW_REASON})
"""Said of one failure: they must not be on the message that returns, or they would speak of the next one."""

CONTRACT = OF_THIS_FAILURE | {
    *(ORIGINAL_QUEUE, ORIGINAL_EXCHANGE, ORIGINAL_KEY, RETRY_COUNT, MAX_RETRIES, PRIORITY, JOB_TYPE)
}
"""All headers that a request may speak by; they are no part of the message that it asks a retry for."""

COPIES = frozenset({"CC", "BCC"})
"""They would send copies elsewhere."""

BROKERS_OWN = frozenset({DEATHS, "x-delivery-count", "x-acquired-count"}) | COPIES
"""Old brokers believe a client's x-death and drop "cycles"."""

BROKERS_OWN_PREFIXES = ("x-first-death-", "x-last-death-")

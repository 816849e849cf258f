"""The headers that tarry reads and writes, and those that must not travel on."""

from __future__ import annotations

OURS = "tarry-"
"""tarry's own headers start so. They are on every returned message, and no application uses them."""

ID = "tarry-id"
ROUND = "tarry-round"
COUNT = "tarry-count"
DUE = "tarry-due-ms"
SINCE = "tarry-since-ms"
QUEUE = "tarry-queue"
EXCHANGE = "tarry-exchange"
KEY = "tarry-key"
USER_ID = "tarry-user-id"
PROBE = "tarry-probe"
"""A message of `tarry attach`: it has proven its way by arriving."""
FORM = "tarry-form"
"""On messages whose request spoke the contract: there its headers are ours to rewrite, elsewhere the application's."""

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

OF_THIS_FAILURE = frozenset({ERROR_REASON, ERROR_TYPE, ERROR_CLASS, RETRY_AFTER, NEXT_RETRY_AT, REVIEW_REASON})
"""Said of one failure: they must not be on the message that returns, or they would speak of the next one."""

BROKERS_OWN = frozenset({"x-death", "x-delivery-count", "x-acquired-count", "CC", "BCC"})
"""Old brokers believe a client's x-death and drop "cycles"; CC and BCC would send copies elsewhere."""

BROKERS_OWN_PREFIXES = ("x-first-death-", "x-last-death-")

"""The table of cases: what every client must do, in any language. docs/clients.md prints it."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from unittest import mock

from tarry.client import Attempt, Classes, Options
from tests.integration.client.adapters import LONG_SHELLS, Consumer
from tests.integration.client.failures import CardDeclined, Failure, FromHeader, Masked, ShopClosed, ShopError, broken
from tests.integration.client.installation import QUEUE
from tests.integration.client.programs import PROGRAMS

CONFORMING: dict[str, type[Consumer]] = LONG_SHELLS | PROGRAMS
"""Who runs the cases; of Python's those that can report something while a handler runs."""

COLUMNS = {"pika": ("blocking", "threads", "select"), "aio-pika": ("aio-pika",), "Node": ("node",), "Java": ("java",)}
"""The columns of the table in docs/clients.md, and who has to do what it says."""

ID = "0a0a0a0a-0b0b-5c0c-8d0d-0e0e0e0e0e0e"
RETURNED: dict[str, Any] = {
    "tarry-id": ID,
    "tarry-round": 4,
    "tarry-count": 3,
    "tarry-max-retries": 3,
    "tarry-due-ms": 1_700_000_000_500,
    "tarry-since-ms": 1_700_000_000_000,
    "tarry-deadline-ms": 1_700_000_060_000,
    "tarry-queue": QUEUE,
    "tarry-exchange": "shop",
    "tarry-key": "order.new",
    "tarry-form": "contract",
    "retry_count": 3,
}
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1, b=2"}
MESSAGE_ID = "m-1"
ANYTHING = mock.ANY
ATTACHED = "attached"


@dataclass(frozen=True)
class Like:
    """A text that matches a glob."""

    glob: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and fnmatchcase(other, self.glob)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Case:
    """One message, how its handler ends, and what is there afterwards."""

    promise: str
    """As docs/clients.md prints it."""
    failure: Failure | None = None
    """None: the handler returns."""
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    suppress: bool = False
    deliveries: int = 1
    """How often the same message is there."""
    handled: int = 1
    """How often the handler must run."""
    queue: str = QUEUE
    until_started: bool = False
    """The handler goes on until its start has been reported."""
    attempt: Attempt | None = None
    request: Mapping[str, Any] | None = None
    """Headers that the request must have. None: there must be no request."""
    without: tuple[str, ...] = ()
    """Headers that it must not have."""
    reported: bool = False
    """Whether the success must be in a report."""
    consumer: str | None = None
    """The name that the start must be reported with."""


FAILS: Failure = {"kind": "error", "reason": "no card"}
TABLE = Classes({ShopError: "retryable", CardDeclined: "final", ShopClosed: "rate_limited"})
SOON = 0.05

CASES = (
    Case("a success is acknowledged, and nothing else is sent", attempt=Attempt(QUEUE, MESSAGE_ID)),
    Case(
        "a failure becomes a request with its queue, exchange, routing key, type and reason",
        {"kind": "card_declined", "reason": "no card"},
        request={
            "original_queue": QUEUE,
            "original_exchange": "",
            "original_routing_key": QUEUE,
            "retry_count": 0,
            "error_type": Like("*CardDeclined"),
            "error_reason": "no card",
        },
        without=("error_class", "retry_after_ms", "owner"),
    ),
    Case(
        "what the broker or an earlier failure wrote on the message is not in the request",
        FAILS,
        {
            "x-first-death-queue": "old",
            "error_class": "final",
            "retry_after_ms": 5,
            "mine": "kept",
        },
        {"expiration": "600000"},
        request={"mine": "kept"},
        without=("x-first-death-queue", "error_class", "retry_after_ms"),
    ),
    Case("`traceparent` and `tracestate` are left as they were", FAILS, TRACE, request=TRACE),
    Case(
        "the reason is cut to its limit, and a NUL in it is escaped",
        {"kind": "error", "reason": "a\0b" + "ü" * 50},
        options=Options(longest_reason=20),
        request={"error_reason": "a\\x00b" + "ü" * 13 + "…"},
    ),
    Case(
        "the redaction hook removes secrets",
        {"kind": "error", "reason": "card 4111111111111111"},
        options=Options(redact=Masked(r"\d{16}")),
        request={"error_reason": "card …"},
    ),
    Case(
        "if that hook fails, the text is withheld, and the retry goes ahead",
        {"kind": "error", "reason": "a secret"},
        options=Options(redact=broken),
        request={"error_reason": Like("(its text was withheld: *")},
    ),
    Case(
        "`Final`: the class is `final`",
        {"kind": "final", "reason": "no such order"},
        request={"error_class": "final", "error_reason": "no such order", "error_type": Like("*Final")},
    ),
    Case(
        "a classed failure has the class of its own type",
        {"kind": "card_declined", "reason": ""},
        options=Options(classes=TABLE),
        request={"error_class": "final"},
    ),
    Case(
        "or else that of its nearest base class",
        {"kind": "shop_closed", "reason": ""},
        options=Options(classes=Classes({ShopError: "rate_limited"})),
        request={"error_class": "rate_limited", "error_type": Like("*ShopClosed")},
        without=("retry_after_ms",),
    ),
    Case(
        "or else that of what caused it",
        {"kind": "error", "reason": "", "caused_by": {"kind": "final", "reason": ""}},
        request={"error_class": "final"},
        without=("retry_after_ms",),
    ),
    Case(
        "a rate limit has its wait, in milliseconds",
        {"kind": "rate_limited", "reason": "busy", "retry_after": 1.5},
        request={"error_class": "rate_limited", "retry_after_ms": 1_500},
    ),
    Case(
        "or none",
        {"kind": "rate_limited", "reason": "busy"},
        request={"error_class": "rate_limited"},
        without=("retry_after_ms",),
    ),
    Case(
        "a response with 429 or 503 is a rate limit, with its `Retry-After`",
        {"kind": "http", "status": 503, "retry_after": 7},
        request={"error_class": "rate_limited", "retry_after_ms": 7_000, "error_reason": "HTTP status 503"},
    ),
    Case("a request names the owner", FAILS, options=Options(owner="acme"), request={"owner": "acme"}),
    Case(
        "or the one that is computed from the message",
        FAILS,
        {"tenant_id": "acme"},
        options=Options(owner=FromHeader("tenant_id")),
        request={"owner": "acme"},
    ),
    Case(
        "a message that has an owner keeps it",
        FAILS,
        {"owner": "globex"},
        options=Options(owner="acme"),
        request={"owner": "globex"},
    ),
    Case(
        "an owner that cannot be computed is left out",
        FAILS,
        options=Options(owner=broken),
        request={"error_reason": "no card"},
        without=("owner",),
    ),
    Case(
        "a returned message says which attempt it is; its success is reported",
        headers=RETURNED,
        options=Options(report_seconds=SOON, report_starts=False),
        attempt=Attempt(
            QUEUE,
            MESSAGE_ID,
            ID,
            4,
            3,
            3,
            dt.datetime.fromtimestamp(1_700_000_000.5, dt.UTC),
            dt.datetime.fromtimestamp(1_700_000_000, dt.UTC),
            dt.datetime.fromtimestamp(1_700_000_060, dt.UTC),
        ),
        reported=True,
    ),
    Case("reports can be switched off", headers=RETURNED, options=Options(report_seconds=SOON, report=False)),
    Case(
        "a message that was forwarded from another queue is a new one",
        headers=RETURNED | {"tarry-queue": "elsewhere"},
        options=Options(report_seconds=SOON),
        attempt=Attempt(QUEUE, MESSAGE_ID),
    ),
    Case(
        "a message that its exchange brought to another queue keeps its count",
        headers=RETURNED | {"tarry-queue": "elsewhere", "tarry-via": "exchange", "tarry-due-ms": "soon"},
        options=Options(report_seconds=SOON),
        attempt=Attempt(
            QUEUE,
            MESSAGE_ID,
            None,
            4,
            3,
            3,
            None,
            dt.datetime.fromtimestamp(1_700_000_000, dt.UTC),
            dt.datetime.fromtimestamp(1_700_000_060, dt.UTC),
        ),
    ),
    Case(
        "a later failure carries the round that failed, and is no success",
        FAILS,
        RETURNED,
        options=Options(report_seconds=SOON, report_starts=False),
        request={name: value for name, value in RETURNED.items() if name.startswith("tarry-")} | {"retry_count": 3},
    ),
    Case(
        "a long attempt is reported as started, and then its success",
        headers=RETURNED,
        options=Options(report_seconds=SOON, consumer='the "new" one'),
        until_started=True,
        reported=True,
        consumer='the "new" one',
    ),
    Case(
        "with `plain` set to `reject`, a failure without class and wait is rejected",
        {"kind": "error", "reason": ""},
        options=Options(plain="reject"),
        queue=ATTACHED,
        request={"x-death": ANYTHING},
        without=("error_reason", "original_queue"),
    ),
    Case(
        "and any other is a request",
        {"kind": "final", "reason": ""},
        options=Options(plain="reject"),
        queue=ATTACHED,
        request={"error_class": "final", "original_queue": ATTACHED},
        without=("x-death",),
    ),
    Case(
        "an attempt that is delivered twice is handled once, with the deduplicator",
        headers=RETURNED,
        options=Options(report=False),
        suppress=True,
        deliveries=2,
    ),
    Case(
        "also the first, if the message has an id",
        options=Options(report=False),
        suppress=True,
        deliveries=2,
    ),
)

MORE = {
    "test_what_fails_becomes_a_request_and_is_acknowledged": (
        "body, properties and header values of every type are those of the message"
    ),
    "test_a_request_that_is_not_taken_puts_the_message_back": (
        "a message whose request is returned or refused is requeued, also if another has the same id"
    ),
    "test_nothing_is_lost": (
        "nothing is lost if the connection is cut before the publish, the confirm or the acknowledgement"
    ),
    "test_one_report_tells_of_many": "one report tells of many successes",
    "test_reports_that_cannot_be_sent_hurt_nobody": "reports that cannot be sent hurt nobody",
}
"""Tests of what takes more than a case; each runs against every client."""


def table() -> str:
    """As docs/clients.md prints it. A client that fails a case fails its test, so there is no other word than yes."""
    assert {name for names in COLUMNS.values() for name in names} == set(CONFORMING)
    rows = [[promise, *("yes" for _ in COLUMNS)] for promise in [*(case.promise for case in CASES), *MORE.values()]]
    lines = [["what a client does", *COLUMNS], ["---"] * (1 + len(COLUMNS)), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---").replace("--- |", "---|")


if __name__ == "__main__":
    sys.stdout.write(table())

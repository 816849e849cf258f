"""Checks of the broker itself: its version, its feature flags, and how many bindings it can handle. All pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tarry.topology.apply import OLDEST
from tarry.topology.expected import Expected
from tarry.topology.findings import Finding
from tarry.topology.live import Live

REQUIRED_FLAGS = ("quorum_queue", "stream_queue")
"""At-least-once dead-lettering needs both."""

FAST_ROUTING = (3, 11)
MOST_BINDINGS_BEFORE = 500
"""Without `direct_exchange_routing_v2` an exchange reads all its bindings for each additional key: 920 messages per
second at 5,000 bindings, compared with 11,000 with it."""

KNOWN_BAD = (
    (
        (3, 13, 0),
        (3, 13, 2),
        "its dead-letter cycle detection can drop a message that was rejected in between (rabbitmq-server #11159)",
    ),
    (
        (4, 0, 0),
        (4, 0, 4),
        "a queue can crash on dead-lettering a message that it held since 3.13 (rabbitmq-server #12933)",
    ),
)
"""First and last affected version, and the reason."""


def check_version(_expected: Expected, live: Live) -> Iterator[Finding]:
    shown = ".".join(map(str, live.version))
    if live.version[:2] < OLDEST:
        why = f"tarry needs {'.'.join(map(str, OLDEST))} or later: before it a dead-lettered message could be lost"
        yield Finding("version", (f"RabbitMQ {shown}",), why, "upgrade the broker")
    for first, last, why in KNOWN_BAD:
        if first <= live.version <= last:
            upgrade = f"upgrade to {last[0]}.{last[1]}.{last[2] + 1} or later"
            yield Finding("version", (f"RabbitMQ {shown}",), why, upgrade)


def check_feature_flags(_expected: Expected, live: Live) -> Iterator[Finding]:
    for flag in REQUIRED_FLAGS:
        if live.feature_flags is not None and live.feature_flags.get(flag, "enabled") != "enabled":
            problem = "is not enabled; quorum queues with at-least-once dead-lettering need it"
            yield Finding("feature flag", (f"feature flag {flag}",), problem, f"rabbitmqctl enable_feature_flag {flag}")


def check_binding_count(expected: Expected, live: Live) -> Iterator[Finding]:
    """Cancellations, destinations and pauses are bindings, each kind on one exchange."""
    if _routes_fast(live):
        return
    for exchange, count in sorted(Counter(binding.source for binding in live.bindings).items()):
        if expected.is_ours(exchange) and count > MOST_BINDINGS_BEFORE:
            problem = f"has {count} bindings; on this broker routing slows down above {MOST_BINDINGS_BEFORE}"
            mend = "upgrade to RabbitMQ 3.11 or later and run: rabbitmqctl enable_feature_flag all"
            yield Finding("bindings", (f"exchange {exchange}",), problem, mend)


def _routes_fast(live: Live) -> bool:
    flags = live.feature_flags or {}
    return live.version[:2] >= FAST_ROUTING and flags.get("direct_exchange_routing_v2", "enabled") == "enabled"

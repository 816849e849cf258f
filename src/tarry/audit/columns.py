"""Rows to arrays: one array for each parameter of a query, so that a batch is one statement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from tarry.audit.arrays import Bigints, Blobs, Booleans, Integers, Packed, Texts, Uuids

CLAIM = {
    "ids": "retry_id",
    "rounds": "round",
    "knows_round": "knows_round",
    "redelivered": "redelivered",
    "counts": "retry_count",
    "queues": "queue",
    "message_ids": "message_id",
    "since_ms": "since_ms",
    "identities": "identity",
    "matchable": "matchable",
    "deaths": "death",
    "by_content": "by_content",
}
RECORD = {
    "ids": "retry_id",
    "rounds": "round",
    "states": "state",
    "reasons": "reason",
    "queues": "queue",
    "exchanges": "exchange",
    "routing_keys": "routing_key",
    "message_ids": "message_id",
    "counts": "retry_count",
    "most": "max_retries",
    "policies": "policy",
    "classes": "error_class",
    "types": "error_type",
    "error_reasons": "error_reason",
    "since_ms": "since_ms",
    "due_ms": "due_ms",
    "delay_ms": "delay_ms",
    "tiers": "tier",
    "properties": "properties",
    "identities": "identity",
    "deaths": "death",
    "guessed": "guessed_round",
}
RETURN = {
    "ids": "retry_id",
    "rounds": "round",
    "queues": "queue",
    "counts": "retry_count",
    "due_ms": "due_ms",
    "at_ms": "at_ms",
    "redelivered": "redelivered",
}
CANCELLED = {name: RETURN[name] for name in ("ids", "rounds", "at_ms", "redelivered")}


_KINDS: dict[str, type[Packed]] = {
    "ids": Uuids,
    "rounds": Integers,
    "counts": Integers,
    "guessed": Integers,
    "most": Integers,
    "knows_round": Booleans,
    "redelivered": Booleans,
    "matchable": Booleans,
    "by_content": Booleans,
    "identities": Uuids,
    "since_ms": Bigints,
    "due_ms": Bigints,
    "delay_ms": Bigints,
    "at_ms": Bigints,
    "bodies": Blobs,
    "properties": Blobs,
}
"""What each parameter is an array of; the others hold text."""


def columns(items: Sequence[object], names: Mapping[str, str]) -> dict[str, Any]:
    return {parameter: column(parameter, map(attrgetter(attribute), items)) for parameter, attribute in names.items()}


def column(parameter: str, items: Iterable[Any]) -> Packed:
    """One array."""
    return _KINDS.get(parameter, Texts)(list(items))

"""What is remembered about breakers: with ten thousand queues, each is asked for once a second."""

from __future__ import annotations

from typing import cast

import pytest

from tarry.operations import breaker_reconciler
from tarry.operations.breaker_reconciler import KnownBreakers
from tarry.operations.context import OperatorContext


class Context:
    files: object = object()


def test_known_breakers_are_read_once_until_the_files_change(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(breaker_reconciler, "breaker_of", lambda label, _: read.append(label))
    context = Context()
    known = KnownBreakers(cast("OperatorContext", context))
    for _ in range(3):
        assert known.of("orders") is None
    context.files = object()
    known.of("orders")
    assert read == ["orders", "orders"]


def test_known_breakers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker_reconciler, "MOST_REMEMBERED", 100)
    monkeypatch.setattr(breaker_reconciler, "breaker_of", lambda *_: None)
    known = KnownBreakers(cast("OperatorContext", Context()))
    for number in range(1_000):
        known.of(f"queue{number}")
    assert len(known._known) <= 100

"""What the client logs about a failed attempt."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tarry.client import Options
from tarry.client.request import Incoming
from tarry.client.settle import answer, requeued
from tests.support.tracing import TRACE, UNSAMPLED
from tests.unit.client.test_failure import ID, incoming

OF_TARRY = {"tarry-id": ID, "tarry-queue": "orders", "tarry-round": 2, "tarry-count": 2}


@pytest.mark.parametrize(
    "settle",
    [lambda one: answer(one, ValueError("no"), Options()), lambda one: requeued(one, "nacked")],
    ids=["failed", "requeued"],
)
@pytest.mark.parametrize(
    ("headers", "retry_id", "trace_id"),
    [(OF_TARRY | {"traceparent": UNSAMPLED}, ID, TRACE), (OF_TARRY, ID, None), ({}, None, None)],
)
def test_settle_logs_the_retry_and_its_trace(
    settle: Callable[[Incoming], object],
    headers: dict[str, object],
    retry_id: str | None,
    trace_id: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settle(incoming(headers))
    (line,) = caplog.records
    assert (line.__dict__["retry_id"], line.__dict__["trace_id"]) == (retry_id, trace_id)

"""The conformance suite for starts: an attempt that goes on is reported as started, one that ends soon is not."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tarry.client import Attempt, Options
from tests.integration.client.adapters import LONG_SHELLS, Blocking, Consumer
from tests.integration.client.conformance import CONFORMING, ID, RETURNED
from tests.integration.client.installation import QUEUE, ClientInstallation
from tests.integration.client.programs import CLIENTS, available
from tests.integration.client.test_adapters import Handler, fails
from tests.support.waiting import wait_for

OFTEN = Options(report_seconds=0.1)


class Hanging:
    """Handles nothing until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.seen: list[Attempt] = []

    def __call__(self, attempt: Attempt, _body: bytes) -> None:
        self.seen.append(attempt)
        assert self.go.wait(60)


@contextmanager
def hanging(installation: ClientInstallation, adapter: type[Consumer], options: Options) -> Iterator[Hanging]:
    handler = Hanging()
    with adapter(installation.amqp_url, QUEUE, handler, options):
        wait_for(lambda: handler.seen, what="a delivery")
        try:
            yield handler
        finally:
            handler.go.set()


@pytest.mark.parametrize("name", LONG_SHELLS)
def test_a_long_attempt_is_reported_as_started_and_then_succeeds(installation: ClientInstallation, name: str) -> None:
    installation.publish(b"again", "m-1", headers=RETURNED)
    with hanging(installation, LONG_SHELLS[name], OFTEN) as handler:
        (start,) = installation.started(1)
        assert (start.retry_id, start.round) == (ID, 4)
        assert (start.consumer or "").endswith(f":{os.getpid()}")
        handler.go.set()
        (outcome,) = installation.reported(1)
    assert (outcome.retry_id, outcome.round) == (ID, 4)
    assert start.at_ms <= outcome.at_ms
    assert len(installation.starts) == 1


@pytest.mark.parametrize("name", LONG_SHELLS)
def test_a_consumer_can_name_itself_in_its_starts(installation: ClientInstallation, name: str) -> None:
    installation.publish(b"again", "m-1", headers=RETURNED)
    with hanging(installation, LONG_SHELLS[name], Options(report_seconds=0.1, consumer='the "new" one')):
        assert [one.consumer for one in installation.started(1)] == ['the "new" one']


@pytest.mark.parametrize("options", [Options(report_starts=False), Options(report=False)], ids=["starts", "reports"])
@pytest.mark.parametrize("name", CONFORMING)
def test_starts_can_be_switched_off(installation: ClientInstallation, name: str, options: Options) -> None:
    installation.publish(b"again", "m-1", headers=RETURNED)
    installation.publish(b"again", "m-2", headers=RETURNED)
    handler = Handler()
    with available(CONFORMING[name])(installation.amqp_url, QUEUE, handler, options):
        wait_for(lambda: len(handler.seen) == 2, what="both deliveries")
    installation.reported(0)
    assert installation.starts == []


@pytest.mark.parametrize("name", CONFORMING)
def test_first_attempts_are_not_reported_as_started(installation: ClientInstallation, name: str) -> None:
    """Nor those of a message that was forwarded from another queue."""
    installation.publish(b"", "m-1")
    installation.publish(b"", "m-2", headers=RETURNED | {"tarry-queue": "elsewhere"})
    installation.publish(b"", "m-3", headers=RETURNED | {"tarry-id": ["not", "an id"]})
    handler = Handler()
    with available(CONFORMING[name])(installation.amqp_url, QUEUE, handler, OFTEN):
        wait_for(lambda: len(handler.seen) == 3, what="all deliveries")
    installation.reported(0)
    assert installation.starts == []


@pytest.mark.parametrize("name", [name for name, client in CLIENTS.items() if client is not Blocking])
def test_a_short_attempt_costs_no_start(installation: ClientInstallation, name: str) -> None:
    """Neither one that succeeds nor one that fails. (A blocking one is reported before it begins.)"""
    installation.publish(b"again", "m-1", headers=RETURNED)
    handler = Handler()
    with available(CLIENTS[name])(installation.amqp_url, QUEUE, handler, Options(report_seconds=5)):
        wait_for(lambda: handler.seen, what="a delivery")
    installation.reported(1)
    installation.publish(b"again", "m-1", headers=RETURNED)
    with available(CLIENTS[name])(installation.amqp_url, QUEUE, fails(ValueError("no")), Options(report_seconds=5)):
        installation.take()
    installation.reported(0)
    assert installation.starts == []


def test_a_blocking_consumer_sends_the_last_success_with_the_next_start(installation: ClientInstallation) -> None:
    """So that at most one success can be lost with its process, and no more reports are made than attempts."""
    for number in range(10):
        headers = RETURNED | {"tarry-id": f"00000000-0000-4000-8000-{number:012}"}
        installation.publish(b"", f"m-{number}", headers=headers)
    handler = Handler()
    with Blocking(installation.amqp_url, QUEUE, handler, Options(report_seconds=60)):
        wait_for(lambda: len(handler.seen) == 10, what="all deliveries")
        wait_for(lambda: installation.depth("retry.audit") == 10, what="a report for each start")
        assert len(installation.reported(9)) == 9
    assert len(installation.reported(1)) == 1
    assert len(installation.starts) == 10

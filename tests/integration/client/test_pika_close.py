"""A consumer that is closed has said all it had to say: to the broker, and to the audit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pika
import pytest

from tarry.client import Options
from tarry.client.pika import CallbackRetries, Retries
from tests.integration.client.conformance import RETURNED
from tests.integration.client.installation import QUEUE, ClientInstallation
from tests.support.amqp import open_connection

LATE = Options(report_seconds=60)
"""Only the closing reports in time."""


class Slow:
    """A handler that waits until it is released."""

    def __init__(self) -> None:
        self.started, self.may_end = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.started.set()
        assert self.may_end.wait(60)

    def end_soon(self) -> None:
        """Well after the caller has begun to close."""
        threading.Timer(0.3, self.may_end.set).start()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def consume(connection: pika.BlockingConnection, handle: Callable[..., None], slow: Slow) -> None:
    connection.channel().basic_consume(QUEUE, handle)
    while not slow.started.is_set():
        connection.process_data_events(0.05)


def test_what_is_at_work_in_a_thread_is_waited_for_and_told_of(
    installation: ClientInstallation, pool: ThreadPoolExecutor
) -> None:
    installation.publish(b"", "m-1", headers=RETURNED)
    slow = Slow()
    with open_connection(installation.amqp_url) as connection:
        retries = Retries(connection, LATE)
        consume(connection, retries.handler(QUEUE, pool)(slow), slow)
        slow.end_soon()
        retries.close()
    installation.reported(1)
    assert installation.depth(QUEUE) == 0


def test_what_fails_in_a_thread_meanwhile_is_asked_for_again(
    installation: ClientInstallation, pool: ThreadPoolExecutor
) -> None:
    installation.publish(b"", "m-1")
    slow = Slow()

    def handle(*about: Any) -> None:
        slow(*about)
        raise ValueError("at last")

    with open_connection(installation.amqp_url) as connection:
        retries = Retries(connection)
        consume(connection, retries.handler(QUEUE, pool)(handle), slow)
        slow.end_soon()
        retries.close()
    assert installation.take().headers["error_reason"] == "at last"
    assert installation.depth(QUEUE) == 0


def test_what_a_pool_never_began_is_not_waited_for(installation: ClientInstallation, pool: ThreadPoolExecutor) -> None:
    for number in range(3):
        installation.publish(b"", f"m-{number}")
    slow = Slow()
    with open_connection(installation.amqp_url) as connection:
        retries = Retries(connection)
        consume(connection, retries.handler(QUEUE, pool)(slow), slow)
        pool.shutdown(wait=False, cancel_futures=True)
        slow.end_soon()
        retries.close()
    assert sorted(str(one.properties.message_id) for one in installation.take_all(QUEUE)) == ["m-1", "m-2"]


def test_reports_that_have_nowhere_to_go_do_not_break_the_closing(installation: ClientInstallation) -> None:
    installation.channel.exchange_delete("retry.reports")
    installation.publish(b"", "m-1", headers=RETURNED)
    handled = threading.Event()
    with open_connection(installation.amqp_url) as connection, Retries(connection, LATE) as retries:
        connection.channel().basic_consume(QUEUE, retries.handler(QUEUE)(lambda *_: handled.set()))
        while not handled.is_set():
            connection.process_data_events(0.05)
    assert installation.depth(QUEUE) == 0


def test_a_callback_connection_is_told_when_all_is_said(
    installation: ClientInstallation, pool: ThreadPoolExecutor
) -> None:
    installation.publish(b"", "m-1", headers=RETURNED)
    slow = Slow()

    def consume(channel: Any) -> None:
        retries = CallbackRetries(channel.connection, LATE)
        channel.basic_consume(QUEUE, retries.handler(QUEUE, pool)(slow))
        close_once_started(channel.connection, retries)

    def close_once_started(connection: Any, retries: CallbackRetries) -> None:
        if not slow.started.is_set():
            connection.ioloop.call_later(0.02, lambda: close_once_started(connection, retries))
            return
        slow.end_soon()
        retries.close(connection.close)

    connection = pika.SelectConnection(
        pika.URLParameters(installation.amqp_url),
        on_open_callback=lambda connection: connection.channel(on_open_callback=consume),
        on_close_callback=lambda connection, _: connection.ioloop.stop(),
    )
    connection.ioloop.start()
    connection.ioloop.close()
    installation.reported(1)
    assert installation.depth(QUEUE) == 0

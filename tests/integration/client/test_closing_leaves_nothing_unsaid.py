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
from tests.harness.amqp import open_connection
from tests.integration.client.test_every_shell_does_the_same import RETURNED
from tests.integration.client.world import QUEUE, World

LATE = Options(report_seconds=60)
"""Only the closing reports in time."""


class Slow:
    """A handler that waits to be let go."""

    def __init__(self) -> None:
        self.started, self.may_end = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        self.started.set()
        assert self.may_end.wait(60)

    def end_soon(self) -> None:
        """Well after whoever calls this has begun to close."""
        threading.Timer(0.3, self.may_end.set).start()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def consume(connection: pika.BlockingConnection, handle: Callable[..., None], slow: Slow) -> None:
    connection.channel().basic_consume(QUEUE, handle)
    while not slow.started.is_set():
        connection.process_data_events(0.05)


def test_what_is_at_work_in_a_thread_is_waited_for_and_told_of(world: World, pool: ThreadPoolExecutor) -> None:
    world.publish(b"", "m-1", headers=RETURNED)
    slow = Slow()
    with open_connection(world.url) as connection:
        retries = Retries(connection, LATE)
        consume(connection, retries.handler(QUEUE, pool)(slow), slow)
        slow.end_soon()
        retries.close()
    world.reported(1)
    assert world.depth(QUEUE) == 0


def test_what_fails_in_a_thread_meanwhile_is_asked_for_again(world: World, pool: ThreadPoolExecutor) -> None:
    world.publish(b"", "m-1")
    slow = Slow()

    def handle(*about: Any) -> None:
        slow(*about)
        raise ValueError("at last")

    with open_connection(world.url) as connection:
        retries = Retries(connection)
        consume(connection, retries.handler(QUEUE, pool)(handle), slow)
        slow.end_soon()
        retries.close()
    assert world.take().headers["error_reason"] == "at last"
    assert world.depth(QUEUE) == 0


def test_what_a_pool_never_began_is_not_waited_for(world: World, pool: ThreadPoolExecutor) -> None:
    for number in range(3):
        world.publish(b"", f"m-{number}")
    slow = Slow()
    with open_connection(world.url) as connection:
        retries = Retries(connection)
        consume(connection, retries.handler(QUEUE, pool)(slow), slow)
        pool.shutdown(wait=False, cancel_futures=True)
        slow.end_soon()
        retries.close()
    assert sorted(str(one.properties.message_id) for one in world.take_all(QUEUE)) == ["m-1", "m-2"]


def test_reports_that_have_nowhere_to_go_do_not_break_the_closing(world: World) -> None:
    world.channel.exchange_delete("retry.reports")
    world.publish(b"", "m-1", headers=RETURNED)
    handled = threading.Event()
    with open_connection(world.url) as connection, Retries(connection, LATE) as retries:
        connection.channel().basic_consume(QUEUE, retries.handler(QUEUE)(lambda *_: handled.set()))
        while not handled.is_set():
            connection.process_data_events(0.05)
    assert world.depth(QUEUE) == 0


def test_a_callback_connection_is_told_when_all_is_said(world: World, pool: ThreadPoolExecutor) -> None:
    world.publish(b"", "m-1", headers=RETURNED)
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
        pika.URLParameters(world.url),
        on_open_callback=lambda connection: connection.channel(on_open_callback=consume),
        on_close_callback=lambda connection, _: connection.ioloop.stop(),
    )
    connection.ioloop.start()
    connection.ioloop.close()
    world.reported(1)
    assert world.depth(QUEUE) == 0

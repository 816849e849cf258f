"""Every step is an event, in order for each retry, whatever is killed meanwhile.

The broker fails the messages itself: their queue lets them expire, and an expired message counts as failed. So each
message makes five events: scheduled, returned, failed again, returned, exhausted. TARRY_EVENTS is the number of
messages; the full size is 40,000, and then router, broker and Postgres are killed in turn until all requests are made.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pika
import psycopg
import pytest
from pika.exceptions import AMQPError

from tarry import embedded
from tests.acceptance.audited import AuditedInstallation
from tests.support.events import Event, StreamReader, reading_stream
from tests.support.router import Router
from tests.support.waiting import wait_for

MESSAGES = int(os.environ.get("TARRY_EVENTS", "400"))
RATE = int(os.environ.get("TARRY_EVENTS_RATE", "60"))
"""Requests a second; the full size is 150."""
BETWEEN = float(os.environ.get("TARRY_EVENTS_BETWEEN", "1"))
"""Seconds between a recovery and the next kill; the full size is 15."""
GAP = float(os.environ.get("TARRY_EVENTS_GAP", "60"))
"""Seconds without an event after the leader was killed; the full size has 10, here it is a busy machine's due."""
POLICIES = """
failures = ["expired"]

[ladder]
levels = 4

[[policy]]
name = "default"
schedule = ["500ms"]
max_retries = 2

[events]
enabled = true
"""
QUEUE = "orders"
MOST_AGAIN = 3 * 32 + 1
"""Messages that a killed broker delivers again at most: those that were not confirmed to the dead-letter workers of the
tier, of the relay and of the queue, which have 32 slots each, and the one that was published again. Each fails once
more: in another round, or if its retry is over, in another retry.
"""
STEPS = """
select retry_id || '/' || id
  from transition
 where state not in ('claimed', 'started', 'layover')
"""
OPEN = "select count(*) from retry where state <> 'in_review'"
STORY = [(1, "scheduled"), (1, "returned"), (2, "scheduled"), (2, "returned"), (3, "in_review")]
"""What happens to each message: rounds and states. Notes can come at any time."""


@dataclass
class Requests:
    """Publishes messages at a steady rate, again if the broker has not confirmed them."""

    amqp_url: str
    done: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while self.done < MESSAGES and not self.ended.is_set():
            with contextlib.suppress(AMQPError, OSError):
                self._publish()
            time.sleep(0.1)

    def _publish(self) -> None:
        with closing(pika.BlockingConnection(pika.URLParameters(self.amqp_url))) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            started, before = time.monotonic(), self.done
            while self.done < MESSAGES and not self.ended.is_set():
                if self.done - before > (time.monotonic() - started) * RATE:
                    connection.sleep(0.01)
                    continue
                about = pika.BasicProperties(delivery_mode=2, message_id=f"m{self.done}")
                channel.basic_publish("", QUEUE, b"x", about, mandatory=True)
                self.done += 1


@dataclass
class World:
    """The services, two routers, the requests and a reader of the stream."""

    broker: embedded.Broker
    postgres: embedded.EmbeddedPostgres
    installation: AuditedInstallation
    requests: Requests
    reader: StreamReader
    gaps: list[float] = field(default_factory=list)
    """Seconds without an event after a leader was killed."""

    def kill_leader(self) -> None:
        """Another router publishes within seconds."""
        leader, killed, moment = self._leader(""), time.monotonic(), datetime.now(UTC).isoformat()
        before = max((at for at in self.reader.arrived if at <= killed), default=killed)
        leader.kill()
        self.installation.routers.remove(leader)
        self._leader(moment)
        taken_over = time.monotonic()
        wait_for(lambda: self.reader.arrived[-1] > taken_over, deadline=60, what="an event of the other router")
        arrived = [before, *(at for at in self.reader.arrived if at > killed)]
        gap = max(later - earlier for earlier, later in pairwise(arrived))
        assert gap < GAP
        self.gaps.append(round(gap, 1))
        self.installation.start()

    def _leader(self, since: str) -> Router:
        """The router that was the last to begin to publish, since this moment."""

        def begun() -> dict[str, Router]:
            found = [(one.logged("publishing events"), one) for one in self.installation.routers]
            return {lines[-1]["timestamp"]: one for lines, one in found if lines and lines[-1]["timestamp"] > since}

        found = wait_for(begun, deadline=60, what="a router to publish events")
        return found[max(found)]

    def kill_broker(self) -> None:
        self.broker.kill()
        self.broker.start()
        self._wait_events()

    def kill_postgres(self) -> None:
        self.postgres.kill()
        time.sleep(BETWEEN)
        self.postgres.start()
        self._wait_events()

    def _wait_events(self) -> None:
        before = len(self.reader.events)
        wait_for(lambda: len(self.reader.events) > before, deadline=120, what="the next event")

    def wait_over(self) -> None:
        """All requests are made, and each ended in review."""
        wait_for(lambda: self.requests.done >= MESSAGES, deadline=MESSAGES, what="all requests")
        wait_for(self._is_over, deadline=300 + MESSAGES / 20, what="all messages in review")

    def wait_read(self) -> int:
        """Every step is in the stream, and read; returns their number. Looks seldom: it takes time from the reader. A
        duplicate may still be noted meanwhile.
        """

        def is_read() -> int:
            time.sleep(0.5)
            steps = {row[0] for row in self.installation.rows(STEPS)}
            return len(steps) if steps == self.reader.ids else 0

        try:
            return wait_for(is_read, deadline=120 + MESSAGES / 60, what="every step in the stream, and no other")
        except AssertionError as failure:
            published = self.installation.rows("select * from event_position")
            failure.add_note(f"{len(self.reader.events)} events read, position {published}")
            raise

    def _is_over(self) -> bool:
        time.sleep(0.3)
        with contextlib.suppress(psycopg.Error):
            rows = self.installation.number("select count(*) from retry")
            return rows >= MESSAGES and self.installation.number(OPEN) == 0
        return False


@pytest.fixture
def world(
    private_broker: Callable[[], embedded.Broker],
    private_postgres: Callable[..., embedded.EmbeddedPostgres],
    tmp_path: Path,
) -> Iterator[World]:
    broker, postgres = private_broker(), private_postgres(durable=True)
    with closing(
        AuditedInstallation(
            broker.amqp_url, broker.management_url, postgres.dsn(), tmp_path / "topology", POLICIES
        ).apply()
    ) as installation:
        installation.declare(
            QUEUE,
            x_message_ttl=50,
            x_dead_letter_exchange="retry.intake",
            x_dead_letter_strategy="at-least-once",
            x_overflow="reject-publish",
        )
        installation.start(2)
        requests = Requests(broker.amqp_url)
        asking = threading.Thread(target=requests.run, name="requests")
        asking.start()
        try:
            with reading_stream(broker.amqp_url) as reader:
                yield World(broker, postgres, installation, requests, reader)
        finally:
            requests.ended.set()
            asking.join()


@pytest.mark.timeout(300 + MESSAGES / 5)
def test_every_step_is_an_event_in_order_whatever_is_killed(world: World) -> None:
    wait_for(lambda: world.reader.events, deadline=60, what="the first event")
    kills = 0
    while kills < 3 or (world.requests.done < MESSAGES * 0.9 and MESSAGES > 1_000):
        (world.kill_leader, world.kill_broker, world.kill_postgres)[kills % 3]()
        kills += 1
        time.sleep(BETWEEN)
    world.wait_over()
    steps = world.wait_read()

    events = world.reader.events
    again, late, stories = count_again(events), out_of_order(events), stories_of(events)
    longer = [story for story in stories.values() if story != STORY and is_longer(story)]
    # The last request of a message, delivered again after its retry went to review: another retry in review.
    ended = [story for story in stories.values() if story == [(1, "in_review")]]
    expected = (STORY, *longer, *ended)
    others = [(retry, story) for retry, story in stories.items() if story not in expected]
    messages = {one["data"]["message_id"] for one in events if one["state"] == "scheduled"}
    twice, broker_kills = len(stories) - MESSAGES, (kills + 1) // 3
    print(  # noqa: T201 - the figures of `make prove`
        f"{kills} kills, {steps} steps, {len(events)} events: {again} again, {len(late)} out of order, "
        f"{len(others)} of {len(stories)} retries with another story; delivered again by a killed broker: "
        f"{len(longer)} with more rounds, {twice} with another retry ({len(ended)} in review at once); "
        f"without events after a killed leader: {world.gaps} s"
    )
    assert messages == {f"m{number}" for number in range(MESSAGES)}
    assert 0 <= twice + len(longer) <= broker_kills * MOST_AGAIN
    assert len(ended) <= twice
    assert steps >= len(STORY) * MESSAGES
    assert late[:5] == []
    assert others[:5] == []


def count_again(events: list[Event]) -> int:
    """Events that were delivered more than once: they are the same event."""
    first: dict[str, Event] = {}
    for one in events:
        known = first.setdefault(one["id"], one)
        for name in ("type", "subject", "time", "sequence", "state"):
            assert known[name] == one[name]
    return len(events) - len(first)


def is_longer(story: list[tuple[int, str]]) -> bool:
    """Whether it is the usual one with more rounds, each of them whole, and in order. Of one round the audit may know
    only the return: its router was killed after the broker's confirm, and its request is the next round.
    """
    last = story[-1][0] - 1
    whole = [(number, state) for number in range(1, last + 1) for state in ("scheduled", "returned")]
    whole.append((last + 1, "in_review"))
    unrecorded = ([*whole[:place], *whole[place + 1 :]] for place in range(0, 2 * last, 2))
    return len(whole) > len(STORY) and (story == whole or story in unrecorded)


def stories_of(events: list[Event]) -> dict[str, list[tuple[int, str]]]:
    """By retry, what happened to it, in the order in which the stream has it for the first time."""
    found: dict[str, list[tuple[int, str]]] = {}
    for one in events:
        story, step = found.setdefault(one["subject"], []), (one["data"]["round"], one["state"])
        if step not in story and step[1] in {"scheduled", "returned", "in_review"}:
            story.append(step)
    return found


def out_of_order(events: list[Event]) -> list[tuple[str, str]]:
    """Steps that come for the first time after a later one of the same retry, each with that one. A duplicate can be
    noted at any time, and a step can be recorded again: its record is in the spool twice after a broker was killed.
    """
    seen: set[tuple[str, int, str]] = set()
    latest: dict[str, Event] = {}
    found = []
    for one in events:
        step = (one["subject"], one["data"]["round"], one["state"])
        if step not in seen and one["state"] != "duplicate":
            last = latest.setdefault(one["subject"], one)
            if one["sequence"] < last["sequence"]:
                found.append((described(last), described(one)))
            else:
                latest[one["subject"]] = one
        seen.add(step)
    return found


def described(event: Event) -> str:
    return f"{event['subject']} round {event['data']['round']} {event['state']} {event['time']}"

"""`tarry audit recover`: sends again what the books have open and the broker does not have.

What to send is the verdict's to say: only those that are named as missing. Each batch is confirmed by the broker before
it is noted, so a run that is cut off repeats at most one batch, and a run that follows finds the rest on the broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pika.exceptions import ChannelClosedByBroker

from tarry.audit.rebuild import CannotRebuildError, Rebuilt, Stored, rebuild
from tarry.audit.report import Report
from tarry.audit.verdict import Open
from tarry.broker.address import Address
from tarry.broker.declare import connect
from tarry.broker.publisher import Message, Outcome, Publisher
from tarry.contract.properties import Properties
from tarry.core.names import Destination, Names
from tarry.errors import AuditError, BrokerError
from tarry.topology.model import Topology

BATCH = 200
NOT_FOUND = 404
ACTOR = "tarry audit recover"

Progress = Callable[[int, int], None]
"""Told how many are done of how many."""


@dataclass(slots=True)
class Recovered:
    """What a recovery did."""

    sent: int = 0
    moved_on: int = 0
    """Returned, or failed again, between the look and the sending."""
    not_rebuilt: list[tuple[str, str]] = field(default_factory=list)
    """Retry ids and why."""
    no_queue: list[str] = field(default_factory=list)
    """Destinations that are not there yet."""


@dataclass(slots=True)
class Recovery:
    """One run."""

    report: Report
    topology: Topology
    address: Address
    progress: Progress = lambda _done, _all: None
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    result: Recovered = field(default_factory=Recovered)

    async def run(self, missing: Sequence[Open]) -> Recovered:
        """All of them, oldest due first."""
        with_lock(self.report)
        wanted = [row for row in missing if row.rebuildable]
        self.result.not_rebuilt = [(row.retry_id, "its payload was not kept") for row in missing if not row.rebuildable]
        self.result.no_queue = bind(self.address, self.topology.broker_names, sorted({row.queue for row in wanted}))
        publisher = await Publisher.open(self.address, "audit recover")
        try:
            for start in range(0, len(wanted), BATCH):
                await self._batch(publisher, wanted[start : start + BATCH])
                self.progress(min(start + BATCH, len(wanted)), len(wanted))
        finally:
            await publisher.link.close()
        return self.result

    async def _batch(self, publisher: Publisher, rows: Sequence[Open]) -> None:
        stored = self._stored(rows)
        self.result.moved_on += len(rows) - len(stored)
        rebuilt = [one for found in stored if (one := self._rebuilt(found)) is not None]
        if not rebuilt:
            return
        outcomes = await publisher.publish([one.message for one in rebuilt])
        sent = [one for one, outcome in zip(rebuilt, outcomes, strict=True) if outcome is Outcome.CONFIRMED]
        self._note(sent)
        self.result.sent += len(sent)
        if len(sent) < len(rebuilt):
            raise _not_taken(outcomes, self.result.sent)

    def _stored(self, rows: Sequence[Open]) -> list[Stored]:
        ids, rounds = [row.retry_id for row in rows], [row.round for row in rows]
        found = self.report.rows("to_rebuild", ids=ids, rounds=rounds)
        return [Stored(row[0], row[1], row[2], row[3], int(row[4]), row[5], row[6]) for row in found]

    def _rebuilt(self, stored: Stored) -> Rebuilt | None:
        try:
            return rebuild(stored, self.topology.rules, self.topology.broker_names, self.now_ms())
        except CannotRebuildError as error:
            self.result.not_rebuilt.append((stored.retry_id, str(error)))
            return None

    def _note(self, sent: Sequence[Rebuilt]) -> None:
        self.report.rows(
            "recovered",
            ids=[one.stored.retry_id for one in sent],
            rounds=[one.stored.round for one in sent],
            tiers=[one.tier for one in sent],
            delay_ms=[one.delay_ms for one in sent],
            actor=ACTOR,
        )


async def recover_reviews(report: Report, names: Names, address: Address, progress: Progress) -> int:
    """Puts all that is in review by the books into the review queue again; the caller has seen that it is empty."""
    with_lock(report)
    publisher = await Publisher.open(address, "audit recover")
    after, sent = "00000000-0000-0000-0000-000000000000", 0
    try:
        while rows := report.rows("reviews_to_rebuild", after=after, limit=BATCH):
            messages = [_review_message(names, row) for row in rows]
            outcomes = await publisher.publish(messages)
            sent += sum(outcome is Outcome.CONFIRMED for outcome in outcomes)
            if any(outcome is not Outcome.CONFIRMED for outcome in outcomes):
                raise _not_taken(outcomes, sent)
            after = rows[-1][0]
            report.rows("note_recovered", ids=[row[0] for row in rows], rounds=[row[1] for row in rows], actor=ACTOR)
            progress(sent, sent)
    finally:
        await publisher.link.close()
    return sent


def _review_message(names: Names, row: Sequence[Any]) -> Message:
    retry_id, round_, key, body, properties = row
    return Message(names.review, key, Properties.decode(properties), body, f"{retry_id}:{round_}")


def bind(address: Address, names: Names, queues: Sequence[str]) -> list[str]:
    """The way home for each destination, which a lost broker has forgotten; returns those that are not there."""
    missing: list[str] = []
    connection = connect(address, "audit recover")
    try:
        for queue in queues:
            channel = connection.channel()
            try:
                channel.queue_bind(queue, names.deliver, Destination("queue", queue).key)
                channel.close()
            except ChannelClosedByBroker as closed:
                if closed.reply_code == NOT_FOUND:
                    missing.append(queue)
    finally:
        connection.close()
    return missing


def with_lock(report: Report) -> None:
    """For as long as the report's connection lives."""
    if not report.rows("lock_recover")[0][0]:
        raise AuditError("Another recovery is under way: wait for its end, then look again with `tarry audit verify`.")


def _not_taken(outcomes: Sequence[Outcome], sent: int) -> BrokerError:
    if Outcome.RETURNED in outcomes:
        return BrokerError(
            f"A tier is not declared on the broker, {sent} were sent: run `tarry topology apply`, then again."
        )
    return BrokerError(f"The broker did not take all of them, {sent} were sent: see its log, then run this again.")

"""Postgres refuses one claim, record or row of a batch: the others are written as usual, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest
from structlog.testing import capture_logs

from tarry.amqp.delivery import Delivery
from tarry.amqp.properties import Properties
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.core.names import Names
from tarry.core.states import State
from tarry.errors import AuditError, AuditUnavailableError
from tarry.router.ledger import ResilientLedger, spooled_record
from tarry.service import tap
from tarry.service.tap import StoreWriter
from tarry.store.claims import Store
from tarry.store.rows import Claim, Claimed, Granted, Record


@dataclass
class Postgres:
    """Refuses claims and records with these ids; a record only while it has a body."""

    refuses: set[str] = field(default_factory=set)
    claimed: list[str] = field(default_factory=list)
    recorded: list[Record] = field(default_factory=list)
    has_unconfirmed: bool = False

    async def claim(self, claims: Sequence[Claim]) -> Claimed:
        if any(one.retry_id in self.refuses for one in claims):
            raise AuditError("no")
        self.claimed += [one.retry_id for one in claims]
        return Claimed({one.retry_id: Granted(one.retry_id, one.round, 0, None) for one in claims}, {})

    async def record(self, records: Sequence[Record]) -> None:
        if any(one.retry_id in self.refuses and one.body for one in records):
            raise AuditError("no")
        self.recorded += records


async def never(_: Sequence[Message]) -> list[PublishOutcome]:
    raise AssertionError("nothing may be spooled")


def ledger(postgres: Postgres) -> ResilientLedger:
    made = ResilientLedger(cast("Store", postgres), never, Names(), lambda: 0)
    made.store_is_ready()
    return made


def claim(retry_id: str) -> Claim:
    return Claim(retry_id, 1, True, False, 0, "orders", None, None)


def record(retry_id: str) -> Record:
    return Record(retry_id, 1, State.SCHEDULED, "orders", routing_key="key", message_id="m", body=b"body", due_ms=5)


def test_a_refused_claim_is_decided_from_memory() -> None:
    postgres = Postgres({"c"})
    used = ledger(postgres)
    with capture_logs() as logs:
        answer = asyncio.run(used.claim([claim(one) for one in "abcde"]))
    assert set(answer.granted) == set("abcde")
    assert postgres.claimed == list("abde")
    assert (used.refused, used.trouble) == (1, None)
    assert [one["retry_id"] for one in logs if one["event"] == "postgres refused a record"] == ["c"]


def test_a_refused_record_is_stored_in_part() -> None:
    postgres = Postgres({"c"})
    used = ledger(postgres)
    with capture_logs():
        asyncio.run(used.record([record(one) for one in "abcde"]))
    found = {one.retry_id: one for one in postgres.recorded}
    assert list(found) == list("abcde")
    assert found["c"] == Record("c", 1, State.SCHEDULED, "orders", reason="stored in part", due_ms=5)
    assert [found[one] for one in "abde"] == [record(one) for one in "abde"]
    assert used.refused == 1


def test_a_refused_skip_goes_to_the_spool_whole() -> None:
    """No message of it is on the broker, so none of it may be left out."""
    spooled: list[Message] = []

    async def spool(messages: Sequence[Message]) -> list[PublishOutcome]:
        spooled.extend(messages)
        return [PublishOutcome.CONFIRMED for _ in messages]

    used = ResilientLedger(cast("Store", Postgres({"c"})), spool, Names(), lambda: 0)
    used.store_is_ready()
    skipped = record("c")._replace(state=State.SKIPPED, due_ms=None, reason="inactive")
    with capture_logs():
        asyncio.run(used.record([record("b"), skipped]))
    assert [spooled_record(Delivery(one.body, one.properties, "retry.spool")) for one in spooled] == [skipped]


def rows(count: int) -> list[tuple[Delivery, int]]:
    return [(Delivery(b"", Properties(), "", "", False, tag), tag) for tag in range(count)]


def test_rows_that_postgres_refuses_are_returned_with_the_reason() -> None:
    written: list[int] = []

    async def write(part: Sequence[int]) -> None:
        if {1, 6}.intersection(part):
            raise AuditError("not these")
        written.extend(part)

    unwritten = asyncio.run(StoreWriter().write(write, rows(8)))
    assert written == [0, 2, 3, 4, 5, 7]
    assert [(delivery.tag, reason) for delivery, reason in unwritten] == [(1, "not these"), (6, "not these")]


def test_rows_are_written_until_they_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap, "PATIENCE", 0.0)
    writer, troubles = StoreWriter(), [AuditUnavailableError("away"), AuditUnavailableError("away")]
    seen: list[AuditUnavailableError | None] = []
    written: list[int] = []

    async def write(part: Sequence[int]) -> None:
        seen.append(writer.trouble)
        if troubles:
            raise troubles.pop()
        written.extend(part)

    assert asyncio.run(writer.write(write, rows(3))) == []
    assert written == [0, 1, 2]
    assert [str(one) for one in seen] == ["None", "away", "away"]
    assert writer.trouble is None


def test_nothing_is_written_for_no_rows() -> None:
    async def write(_: Sequence[int]) -> None:
        raise AssertionError

    assert asyncio.run(StoreWriter().write(write, [])) == []

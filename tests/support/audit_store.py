"""The stores of two routers on one database, without a broker: claims, records and returns as a service makes them."""

from __future__ import annotations

import asyncio
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg

from tarry.amqp.field_tables import head, scan, text_entry
from tarry.amqp.properties import Properties
from tarry.audit.status import read_balance
from tarry.contract.identity import content_identity, retry_id
from tarry.core.states import State
from tarry.store.claims import Store
from tarry.store.rows import Balance, Claim, Claimed, Granted, Record, Return
from tests.support.store import in_session

QUEUE = "orders"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class AuditStore:
    """Blocking calls on the stores of two routers, and SQL."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._runner = asyncio.Runner()
        self._executor = ThreadPoolExecutor(1)
        self.one = Store(dsn, "one")
        self.other = Store(dsn, "other")
        self.do(self.one.open())
        self.do(self.other.open())
        self.sql = psycopg.connect(dsn, autocommit=True)

    def do(self, work: Any) -> Any:
        return self._runner.run(work)

    def submit(self, work: Any) -> Future[Any]:
        """As `do`, on a thread. The stores take no other call until it is done."""
        return self._executor.submit(self.do, work)

    def close(self) -> None:
        self._executor.shutdown()
        self.sql.close()
        self.do(self.one.close())
        self.do(self.other.close())
        self._runner.close()

    def claim(self, *claims: Claim, by: Store | None = None) -> dict[str, Granted]:
        """The granted claims, by retry id."""
        answer: Claimed = self.do((by or self.one).claim(claims))
        return {granted.retry_id: granted for granted in answer.granted.values()}

    def schedule(self, retry: str, round_: int, *, due_in_ms: int = 60_000, count: int = 1, **more: Any) -> None:
        due = now_ms() + due_in_ms
        delay = max(due_in_ms, 2_000)
        self.record(
            Record(retry, round_, State.SCHEDULED, QUEUE, retry_count=count, due_ms=due, delay_ms=delay, **more)
        )

    def review(self, retry: str, round_: int, *, count: int = 0) -> None:
        self.record(Record(retry, round_, State.IN_REVIEW, QUEUE, reason="exhausted", retry_count=count))

    def record(self, *records: Record) -> None:
        self.do(self.one.record(records))

    def see(self, retry: str, round_: int, *, drift: int = 5, redelivered: bool = False) -> None:
        at = now_ms()
        self.do(self.one.returned([Return(retry, round_, QUEUE, 1, at - drift, at, redelivered)]))

    def state(self, retry: str) -> tuple[str, int, int]:
        """State, round and count."""
        row = self.sql.execute("select state, round, retry_count from retry where id = %s", [retry]).fetchone()
        assert row is not None
        return row

    def history(self, retry: str) -> list[tuple[str, int]]:
        found = self.sql.execute("select state, round from transition where retry_id = %s order by id", [retry])
        return found.fetchall()

    def age(self, retry: str, seconds: int) -> None:
        """Makes the row that much older."""
        self.sql.execute(
            "update retry set claimed_at = claimed_at - %(s)s * interval '1 second',"
            " updated_at = updated_at - %(s)s * interval '1 second',"
            " returned_at = returned_at - %(s)s * interval '1 second',"
            " due_at = due_at - %(s)s * interval '1 second', expected_at = expected_at - %(s)s * interval '1 second',"
            " entered_at = entered_at - %(s)s * interval '1 second' where id = %(id)s",
            {"s": seconds, "id": retry},
        )

    def balance(self) -> Balance:
        return in_session(self.dsn, read_balance)


def request(
    message: str | None,
    *,
    round_: int | None = None,
    count: int = 0,
    redelivered: bool = False,
    retry: str | None = None,
    body: str = "",
    headers: str = "",
    death: str | None = None,
) -> Claim:
    """`round_` is the round that failed, where tarry's headers say so."""
    identity = identity_of(message, body, headers) if message else None
    own = retry or (id_of(message, body, headers, death) if message else str(uuid.uuid4()))
    knows = round_ is not None
    return Claim(
        retry_id=own,
        round=(round_ or 0) + 1,
        knows_round=knows,
        redelivered=redelivered,
        retry_count=count,
        queue=QUEUE,
        message_id=message,
        since_ms=None,
        identity=identity,
        matchable=message is not None,
        death=death,
    )


def identity_of(message: str, body: str = "", headers: str = "") -> str:
    table = text_entry(head("users"), headers) if headers else b""
    about = Properties(headers=table)
    return content_identity(QUEUE, message, body.encode(), about, scan(table), contract=False)


def id_of(message: str, body: str = "", headers: str = "", death: str | None = None) -> str:
    """The id of the first retry of a message."""
    return retry_id(identity_of(message, body, headers), death or "")

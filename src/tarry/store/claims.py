"""The store of the routers and the tap: writes claims, records, returns and outcome reports to Postgres in batches."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

import psycopg
import structlog
from psycopg.rows import TupleRow

from tarry.amqp.delivery import Delivery
from tarry.contract.outcome import BadReportError, Report, ReportedOutcome, ReportedSkip, ReportedStart, read_report
from tarry.core.budgets import Slot
from tarry.core.fingerprint import fingerprint
from tarry.core.policy import Policy
from tarry.core.states import Note
from tarry.errors import AuditUnavailableError
from tarry.store.columns import (
    CANCELLED,
    CHARGE,
    CLAIM,
    LEG,
    LEG_KEY,
    RECORD,
    RETURN,
    Bigints,
    Integers,
    Texts,
    Uuids,
    column,
    columns,
)
from tarry.store.database import Connection, explained_errors, pool, query
from tarry.store.errors import Trouble, unavailable
from tarry.store.rows import (
    Charge,
    Charged,
    ChargeOutcome,
    Claim,
    Claimed,
    Granted,
    Leg,
    LegKey,
    Record,
    RecordedCancel,
    RecordedReturn,
    Return,
    SkippedWhenDue,
    Success,
)

log = structlog.get_logger()


def reported(deliveries: Sequence[Delivery]) -> list[tuple[Delivery, Report]]:
    """Parse outcome reports. One that cannot be parsed is skipped: a report is evidence only, and holds no message."""
    found: list[tuple[Delivery, Report]] = []
    for one in deliveries:
        try:
            found.append((one, read_report(one.body)))
        except BadReportError as error:
            log.warning("not an outcome report", error=str(error))
    return found


def outcome_columns(outcomes: Sequence[ReportedOutcome]) -> dict[str, Any]:
    """The parameters of the query `succeeded`, one array each."""
    return {
        "ids": Uuids([one.retry_id for one in outcomes]),
        "rounds": Integers([one.round for one in outcomes]),
        "counts": Integers([one.retry_count for one in outcomes]),
        "at_ms": Bigints([one.at_ms for one in outcomes]),
        "durations_ms": Bigints([one.duration_ms for one in outcomes]),
    }


def charge_parameters(
    policy: Policy, charges: Sequence[Charge], slots: Sequence[Slot], *, is_all: bool
) -> dict[str, Any]:
    """The parameters of the query `charge`."""
    about = columns(charges, CHARGE) | budget_columns(policy) | slot_columns(slots)
    return about | {"policy": policy.name, "is_all": is_all}


def charged(row: TupleRow) -> Charged:
    return Charged(*row)._replace(outcome=ChargeOutcome(row[2]))


def budget_columns(policy: Policy) -> dict[str, Any]:
    """The parameters of the query `charge` about the budgets of a policy, one array each."""
    budgets = policy.budgets
    found: dict[str, list[Any]] = {
        "budgets": [one.key(policy.name) for one in budgets],
        "pers": [one.per.value for one in budgets],
        "everys": [one.every.value for one in budgets],
        "limits": [one.limit for one in budgets],
        "amounts": [policy.charge_of(one) for one in budgets],
        "overs": [one.over.value for one in budgets],
    }
    return {name: column(name, items) for name, items in found.items()}


def slot_columns(slots: Sequence[Slot]) -> dict[str, Any]:
    """The same about slots. The periods are one after the other: those of the first slot, of the second, …"""
    periods = [period for slot in slots for period in slot.periods]
    return {
        "opens_ms": column("opens_ms", [slot.opens_ms for slot in slots]),
        "spreads_ms": column("spreads_ms", [slot.spread_ms for slot in slots]),
        "starts_ms": column("starts_ms", [period.starts for period in periods]),
        "ends_ms": column("ends_ms", [period.ends for period in periods]),
    }


def record_columns(records: Sequence[Record], bodies: Sequence[bytes | None]) -> dict[str, Any]:
    """The parameters of the query `record`, one array each."""
    fingerprints = [fingerprint(one.error_type, one.error_reason) for one in records]
    details = [_detail(*one) for one in zip(records, fingerprints, strict=True)]
    return columns(records, RECORD) | {
        "bodies": column("bodies", bodies),
        "fingerprints": column("fingerprints", fingerprints),
        "details": column("details", details),
    }


def _detail(record: Record, mark: str | None) -> str | None:
    """The `detail` of its step in the history, as JSON. Made here, because Postgres takes longer for it."""
    about = _about(record.policy, record.error_class, mark, record.owner, record.tier)
    parts = [about] if about else []
    if record.due_ms is not None:
        parts.append(f'"due_ms":{record.due_ms},"delay_ms":{record.delay_ms or 0},"attempt":{record.retry_count}')
    if record.hint_ms is not None:
        parts.append(f'"hint_ms":{record.hint_ms}')
    if record.budget is not None:
        parts.append(f'"budget":{json.dumps(record.budget)}')
    if record.deferred_from_ms is not None:
        parts.append(f'"deferred_from_ms":{record.deferred_from_ms}')
    return f"{{{','.join(parts)}}}" if parts else None


@lru_cache(maxsize=4_096)
def _about(policy: str | None, error_class: str | None, mark: str | None, owner: str | None, tier: str | None) -> str:
    """The part that many steps have in common, without braces. What is not known is left out."""
    fields = {"policy": policy, "class": error_class, "fingerprint": mark, "owner": owner, "tier": tier}
    return json.dumps({name: value for name, value in fields.items() if value is not None})[1:-1]


T = TypeVar("T")

LEASE = timedelta(seconds=60)
"""A claim unconfirmed for this long has lost its request: the broker would have delivered it again by now."""

MOMENT = timedelta(seconds=3)
"""How long another router is assumed to be working on its claim although the request is delivered again: it may be a
second request for the same round. Treating it as a duplicate could lose the message, taking over could send it twice;
so it waits."""

UNDECIDED = timedelta(seconds=10)
"""The same for a request that is delivered for the first time."""

SKEW = timedelta(seconds=1)
"""How much the clocks of routers and Postgres may differ. A retry that comes due within it counts as due: if it is not
certain, a request is a new round and not a duplicate."""

ORDINARY = (False, True, False)
"""A return that is not repeated, comes due with it, and that no person began: the query `returned` leaves it out."""

GIVE_BACK: dict[str, Any] = dict.fromkeys(("of", "tokens", "ids", "rounds", "older_than")) | {"forget": False}
"""Parameters of `give_back` that restrict nothing."""

LARGEST_PAYLOAD = 1 << 20
"""The largest body, in bytes, that is stored by default. A message with a larger one cannot be rebuilt."""

_PATIENCE = 5.0
"""Seconds for one statement, which normally takes some tens of milliseconds; after that Postgres counts as unreachable.
Longer than the statement_timeout of these connections, so that a slow server can report the timeout itself."""

STATEMENT_TIMEOUT_MS = 4_000
"""The statement_timeout of these connections; must match the query `configure`."""

_MARGIN_MS = 500

_ASK_AGAIN = 0.1

_LONGEST_WAIT_MS = 12_000
"""Longer than `DOUBT`: a request that is still undecided then is being claimed repeatedly by another router."""

_ATTEMPTS = 3
"""Two routers that claim the same ids may deadlock. Postgres aborts one of the statements, which is then retried."""


class Store:
    """Opens lazily. The pool reconnects by itself; until it has, callers get AuditUnavailableError."""

    def __init__(
        self,
        dsn: str,
        actor: str,
        *,
        patience: float = 2.0,
        connections: int = 6,
        largest_payload: int = LARGEST_PAYLOAD,
    ) -> None:
        self._actor = actor
        self._rules = {"actor": actor, "lease": LEASE, "moment": MOMENT, "undecided": UNDECIDED, "skew": SKEW}
        self._ours = GIVE_BACK | {"of": actor, "actor": actor, "forget": True}
        self._token = time.time_ns()
        """The token of the latest claim. Other routers, and this one after a restart, use different tokens."""
        self._unconfirmed: dict[int, int] = {}
        """Claim statements without an answer, which Postgres may have executed: token to deadline."""
        self._server_ahead_ms: int | None = None
        self._largest = largest_payload
        self._pool = pool(dsn, f"tarry {actor}", patience=patience, connections=connections, configure=_configure)

    async def open(self) -> None:
        await self._pool.open(wait=False)

    async def close(self) -> None:
        await self._pool.close(timeout=1)

    async def claim(self, claims: Sequence[Claim]) -> Claimed:
        """Claim a batch of requests. One that stays undecided because another router keeps claiming it is left out."""
        token = self._token = self._token + 1
        answer = Claimed({}, {})
        asked = {claim.retry_id: (claim.retry_id, claim) for claim in claims}
        ends = _local_ms() + _LONGEST_WAIT_MS
        while asked and _local_ms() < ends:
            rows = await self._claim([claim for _, claim in asked.values()], token)
            answered = {row[0] for row in rows}
            undecided = {named: one for named, one in asked.items() if named not in answered}
            for named, retry, round_, count, since_ms, verdict in rows:
                first, claim = asked[named]
                if verdict == "granted":
                    answer.granted[first] = Granted(retry, round_, count, since_ms)
                elif verdict == "duplicate":
                    answer.duplicate_of[first] = retry
                else:
                    again = claim.set_apart() if verdict == "apart" else claim
                    undecided[again.retry_id] = (first, again)
            asked = undecided
            if asked:
                await asyncio.sleep(_ASK_AGAIN)
        return answer

    async def _claim(self, claims: Sequence[Claim], token: int) -> list[TupleRow]:
        """Run the statement, with a deadline after which it grants nothing. Without an answer it stays unconfirmed."""
        while True:
            if self._server_ahead_ms is None:
                await self.ping()
            deadline = self._server_now_ms() + int(_PATIENCE * 1_000)
            try:
                rows = await self._rows(
                    "claim", columns(claims, CLAIM) | self._rules | {"token": token, "deadline_ms": deadline}
                )
            except (AuditUnavailableError, asyncio.CancelledError):
                self._unconfirmed[token] = deadline
                raise
            self._learn_clock(next(row[4] for row in rows if row[0] is None))
            if not any(row[5] == "late" for row in rows):
                return [row for row in rows if row[0] is not None]

    async def release(self, claimed: Sequence[tuple[str, int]]) -> None:
        """Give back claims of this router: ids and rounds."""
        ids, rounds = [one for one, _ in claimed], [round_ for _, round_ in claimed]
        await self._rows("give_back", self._ours | {"ids": ids, "rounds": rounds})

    @property
    def has_unconfirmed(self) -> bool:
        """Whether Postgres may have granted claims for which no answer arrived."""
        return bool(self._unconfirmed)

    async def release_unconfirmed(self) -> None:
        """Give back claims granted without an answer, once none of those statements can grant anything any more."""
        await self.ping()
        settled = [
            token
            for token, deadline in self._unconfirmed.items()
            if deadline + STATEMENT_TIMEOUT_MS + _MARGIN_MS < self._server_now_ms()
        ]
        if settled:
            await self._rows("give_back", self._ours | {"tokens": settled})
            for token in settled:
                del self._unconfirmed[token]

    def _server_now_ms(self) -> int:
        """Postgres's clock, or slightly behind it by the latency of the answer that carried it."""
        return _local_ms() + (self._server_ahead_ms or 0)

    def _learn_clock(self, server_ms: int) -> None:
        self._server_ahead_ms = server_ms - _local_ms()

    async def charge(
        self, policy: Policy, charges: Sequence[Charge], slots: Sequence[Slot], *, is_all: bool
    ) -> list[Charged]:
        """Charge retries of one policy to its budgets, each in the first of these slots with room. `is_all` says that
        no later slot may be used.
        """
        rows = await self._rows("charge", charge_parameters(policy, charges, slots, is_all=is_all))
        return list(map(charged, rows))

    async def record(self, records: Sequence[Record]) -> None:
        rows = record_columns(records, [self._payload(one) for one in records])
        await self._rows("record", rows | {"actor": self._actor})

    async def record_late(self, records: Sequence[Record]) -> None:
        """As `record`, for those from the spool: their retries may have returned, and failed again, by now."""
        rows = record_columns(records, [self._payload(one) for one in records]) | {"actor": self._actor}

        async def write(connection: Connection) -> None:
            async with connection.transaction():
                await connection.execute(query("record"), rows)
                await connection.execute(query("name_messages"), rows)

        await self._run(write)

    def _payload(self, record: Record) -> bytes | None:
        return None if record.body is None or len(record.body) > self._largest else record.body

    async def legs_sent_on(self, legs: Sequence[LegKey]) -> set[LegKey]:
        """Those of these legs whose next leg is recorded: a message on one of them is a copy."""
        return {LegKey(*row) for row in await self._rows("legs_sent_on", columns(legs, LEG_KEY))}

    async def record_legs(self, legs: Sequence[Leg]) -> None:
        """The broker has confirmed these legs."""
        await self._rows("record_legs", columns(legs, LEG) | {"actor": self._actor})

    async def note(self, notes: Sequence[tuple[str, int]], note: Note, reason: str) -> None:
        ids, rounds = [one for one, _ in notes], [round_ for _, round_ in notes]
        same = [note.value] * len(notes)
        await self._rows("note", {"ids": ids, "rounds": rounds, "notes": same, "actor": self._actor, "reason": reason})

    async def returned(self, returns: Sequence[Return]) -> list[RecordedReturn]:
        """Store the returns that the tap has seen; those that were stored before are not in the answer."""
        rows = await self._rows("returned", columns(returns, RETURN) | {"actor": self._actor})
        unusual = {place: row for place, *row in rows}
        found = [(one, *unusual.get(place, ORDINARY)) for place, one in enumerate(returns, 1)]
        return [RecordedReturn(one, due, by_person) for one, again, due, by_person in found if not again]

    async def not_requeued(self, lately: timedelta) -> set[tuple[str, int]]:
        """Retry ids and rounds that passed the tap lately, and arrived in the unroutable queue."""
        return {(row[0], row[1]) for row in await self._rows("not_requeued", {"lately": lately})}

    async def succeeded(self, outcomes: Sequence[ReportedOutcome]) -> list[Success]:
        """Store the successes that consumers report; those that were stored before are not in the answer."""
        return [Success(*row) for row in await self._rows("succeeded", outcome_columns(outcomes))]

    async def started(self, starts: Sequence[ReportedStart]) -> None:
        """Store that attempts at these rounds have started and have no outcome yet."""
        await self._rows(
            "started",
            {
                "ids": Uuids([one.retry_id for one in starts]),
                "rounds": Integers([one.round for one in starts]),
                "at_ms": Bigints([one.at_ms for one in starts]),
                "consumers": Texts([one.consumer for one in starts]),
            },
        )

    async def skipped(self, skips: Sequence[ReportedSkip]) -> list[SkippedWhenDue]:
        """Store that these rounds were skipped when due; those that were stored before are not in the answer."""
        parameters = {
            "ids": Uuids([one.retry_id for one in skips]),
            "rounds": Integers([one.round for one in skips]),
            "at_ms": Bigints([one.at_ms for one in skips]),
            "reasons": Texts([one.reason for one in skips]),
        }
        return [SkippedWhenDue(*row) for row in await self._rows("skipped_when_due", parameters)]

    async def cancelled(self, sightings: Sequence[Return]) -> list[RecordedCancel]:
        """Store that these rounds were diverted; those that were stored before are not in the answer."""
        rows = await self._rows("cancelled", columns(sightings, CANCELLED) | {"actor": self._actor})
        return [RecordedCancel(sightings[place - 1], due) for place, due in rows]

    async def mark_unroutable(self, found: Sequence[tuple[str, int]]) -> None:
        """These rounds arrived in the unroutable queue."""
        ids, rounds = [one for one, _ in found], [round_ for _, round_ in found]
        await self._rows("unroutable_rounds", {"ids": ids, "rounds": rounds, "actor": self._actor})

    async def ping(self) -> None:
        """Raises if Postgres cannot be written to: it may answer and still be full or read-only."""
        self._learn_clock((await self._rows("ping", {}))[0][0])

    async def _rows(self, name: str, parameters: Mapping[str, Any]) -> list[TupleRow]:
        async def ask(connection: Connection) -> list[TupleRow]:
            cursor = await connection.execute(query(name), parameters)
            return await cursor.fetchall() if cursor.description else []

        return await self._run(ask)

    async def _run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Gives up after `_PATIENCE`, whatever the state of Postgres or the network."""
        running = asyncio.ensure_future(self._retry_deadlocks(work))
        try:
            done, _ = await asyncio.wait([running], timeout=_PATIENCE)
        except asyncio.CancelledError:
            running.cancel()
            raise
        if done:
            return running.result()
        # Not awaited: psycopg asks the server to cancel the statement, which takes as long again without an answer.
        running.cancel()
        running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nothing else retrieves it
        raise unavailable(Trouble.UNREACHABLE, f"no answer for {_PATIENCE:g} seconds.")

    async def _retry_deadlocks(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        with explained_errors():
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    async with self._pool.connection() as connection:
                        return await work(connection)
                except psycopg.errors.DeadlockDetected:
                    if attempt == _ATTEMPTS:
                        raise
        raise AssertionError


def _local_ms() -> int:
    """A monotonic clock: setting the system time does not affect it."""
    return time.monotonic_ns() // 1_000_000


async def _configure(connection: Connection) -> None:
    await connection.execute(query("configure"))

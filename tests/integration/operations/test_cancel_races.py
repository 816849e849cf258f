"""Cancels and retry-nows at random moments around the due moment, against a live router and an independent consumer.

A short form by default; `TARRY_HAMMER=1000` makes so many of each, and prints the figures.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg

from tarry.errors import ConflictError
from tarry.operations import cancel_reconciler
from tarry.operations.cancel import cancel
from tarry.operations.context import OperatorContext, OperatorLimits
from tarry.operations.retry_now import retry_now
from tarry.topology.model import Topology
from tests.integration.operations.witness import Witness
from tests.support.installation import Installation
from tests.support.router import Router
from tests.support.store import verified
from tests.support.waiting import eventually, wait_for

EACH = int(os.environ.get("TARRY_HAMMER", "30"))
WAVE = 150
"""Of each kind at once: on an old broker their bindings must stay below the cap."""

POLICY = """
[ladder]
levels = 4

[[policy]]
name = "default"
schedule = ["4s"]
max_retries = 3
"""


@dataclass(frozen=True)
class Told:
    message_id: str
    kind: str
    answer: str
    before_due: float
    """Seconds from the moment of asking to the due moment."""
    took: float


def test_every_answer_is_what_happened(
    installation: Installation, topology: Topology, start: Callable[..., Router]
) -> None:
    installation.write_policies(POLICY)
    installation.apply()
    origin = installation.declare("work")
    start().wait_ready()
    told: list[Told] = []
    with Witness(installation.amqp_url, origin) as witness:
        for begin in range(0, EACH, WAVE):
            told += _wave(installation, topology, range(begin, min(begin + WAVE, EACH)))
        wait_for(lambda: _open(installation) == 0, what="nothing to be open in the store")
        eventually(lambda: _agree(told, witness))
    _print(told, witness, installation)
    assert Counter(one.kind for one in told) == {"cancel": EACH, "retry_now": EACH}
    assert not [one for one in told if one.answer == "pending"]
    _audit_balances(installation, topology)


def _wave(installation: Installation, topology: Topology, numbers: Sequence[int]) -> list[Told]:
    kinds = {f"{kind}-{number}": kind for number in numbers for kind in ("cancel", "retry_now")}
    for message_id in kinds:
        installation.request("work", message_id)
    wait_for(lambda: len(_due(installation, kinds)) == len(kinds), what="all to be scheduled")
    return asyncio.run(_hammer(installation, topology, kinds, _due(installation, kinds)))


async def _hammer(
    installation: Installation, topology: Topology, kinds: dict[str, str], due: dict[str, tuple[str, datetime]]
) -> list[Told]:
    limits = OperatorLimits(linger=timedelta(seconds=1))
    async with OperatorContext.open(
        topology, installation.address, installation.dsn, actor="hammer", limits=limits
    ) as context:
        stop = asyncio.Event()
        reconciler = asyncio.create_task(cancel_reconciler.run(context, stop, every=0.5))
        told = await asyncio.gather(*(_strike(context, one, kinds[one], *due[one]) for one in kinds))
        await _until_unbound(context)
        stop.set()
        await reconciler
    return told


async def _strike(context: OperatorContext, message_id: str, kind: str, retry_id: str, due: datetime) -> Told:
    """At some moment from well before the due moment to just after it, most of them close to it."""
    offset = random.choice([random.uniform(-3.0, 0.4), random.gauss(0, 0.05)])
    await asyncio.sleep(max(0.0, due.timestamp() + offset - time.time()))
    asked = time.time()
    act = cancel if kind == "cancel" else retry_now
    try:
        answer = (await act(context, retry_id, actor="hammer")).answer
    except ConflictError as error:
        answer = "returned" if "already returned" in str(error) else str(error)
    return Told(message_id, kind, answer, due.timestamp() - asked, time.time() - asked)


async def _until_unbound(context: OperatorContext) -> None:
    async with asyncio.timeout(40):
        while (row := await context.store.one("active_diversions")) and row[0]:  # noqa: ASYNC110 - another task ends them
            await asyncio.sleep(0.2)


EXPECTED = {"cancelled": [], "returned": [1], "retried": [2]}
"""The rounds in which an independent consumer must have seen it, by what the caller was told."""


def _agree(told: Sequence[Told], witness: Witness) -> None:
    seen = witness.rounds()
    wrong = [(one, seen[one.message_id]) for one in told if EXPECTED.get(one.answer) != seen[one.message_id]]
    assert wrong == []


def _due(installation: Installation, ids: dict[str, str]) -> dict[str, tuple[str, datetime]]:
    with psycopg.connect(installation.dsn) as connection:
        rows = connection.execute(
            "select message_id, id::text, due_at from retry where message_id = any(%s) and due_at is not null",
            [list(ids)],
        )
        return {row[0]: (row[1], row[2]) for row in rows}


def _open(installation: Installation) -> int:
    with psycopg.connect(installation.dsn) as connection:
        row = connection.execute("select count(*) from retry where state in ('claimed', 'scheduled')").fetchone()
    assert row is not None
    return int(row[0])


def _audit_balances(installation: Installation, topology: Topology) -> None:
    look, balance = verified(installation.dsn, installation.address, topology.broker_names)
    assert (look.verdict.lost, balance.lost, balance.twice, balance.duplicates) == (0, 0, 0, 0)


def _print(told: Sequence[Told], witness: Witness, installation: Installation) -> None:
    early = min((seen.at_ms - seen.due_ms for seen in witness.seen), default=0)
    for kind in ("cancel", "retry_now"):
        mine = [one for one in told if one.kind == kind]
        answers = Counter(one.answer for one in mine)
        close = sum(abs(one.before_due) < 0.1 for one in mine)
        took = sorted(one.took for one in mine)
        sys.stdout.write(
            f"\n{kind}: {len(mine)} asked ({close} within 100 ms of the due moment), told {dict(answers)}, "
            f"all as seen; answers took p50 {took[len(took) // 2] * 1000:.0f} ms, most {took[-1] * 1000:.0f} ms"
        )
    sys.stdout.write(f"\ndeliveries {len(witness.seen)}, least drift {early} ms, broker {installation.address}\n")

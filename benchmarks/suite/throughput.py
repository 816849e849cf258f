"""Scheduling and end-to-end throughput of one contender, with what they cost in processor time and memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.contenders import tarry
from benchmarks.contenders.marks import ARRIVED, RECORDED, SCHEDULED
from benchmarks.contenders.protocol import Contender, Job
from benchmarks.contenders.running import Running, rate, running
from benchmarks.contenders.tarry import Tarry
from benchmarks.router.stage import Stage
from benchmarks.suite.processes import cpu_seconds
from benchmarks.suite.samples import HUNDRED_THOUSAND

PATIENCE = 45.0
"""Seconds without any progress after which a contender is given up."""

RARELY = 0.5
"""Seconds between readings where the store has each moment: the others are watched through files, tarry through its
metrics page, which is work for the very process that is measured."""

UNRECORDED = ("audit off", "audit on the spool")
"""Ways to run tarry in which no return is written to Postgres."""


@dataclass(frozen=True)
class Cost:
    """Processor seconds so far, by who spent them."""

    own: float
    broker: float
    postgres: float

    @classmethod
    def of(cls, on: Stage, one: Running) -> Cost:
        own = [process.pid for process in one.processes]
        postgres = [on.postgres.pid] if on.postgres.pid else []
        return cls(cpu_seconds(own), cpu_seconds(on.broker_pids), cpu_seconds(postgres))

    def per_hundred_thousand(self, before: Cost, count: int) -> dict[str, float]:
        each = HUNDRED_THOUSAND / count
        return {
            "cpu_own_s": (self.own - before.own) * each,
            "cpu_broker_s": (self.broker - before.broker) * each,
            "cpu_postgres_s": (self.postgres - before.postgres) * each,
        }


def scheduling(on: Stage, contender: Contender, job: Job, count: int) -> dict[str, float]:
    """Requests moved and durable per second, out of a full queue; nothing comes back meanwhile.

    And how much more memory the broker uses while all of them wait.
    """
    with running(on, contender, job) as one:
        empty_mib = on.broker_memory_mib()
        one.fill(count)
        one.start()
        _taken_up(one, PATIENCE)
        before = Cost.of(on, one)
        per_s = scheduling_rate(one, count)
        cost = Cost.of(on, one).per_hundred_thousand(before, count)
        held_mib = (on.broker_memory_mib() - empty_mib) * HUNDRED_THOUSAND / count
    return {"per_s": per_s, "held_mib": held_mib, **cost}


def scheduling_rate(one: Running, count: int) -> float:
    """The ramp at the beginning is left out: from the first that was scheduled to the last."""
    if isinstance(one.contender, Tarry):
        one.wait(lambda: tarry.scheduled(one), count, PATIENCE, RARELY)
        return rate(tarry.scheduled_moments(one)[:count])
    one.wait(one.scheduled, count, PATIENCE)
    return rate([at for at, _ in one.marks.read(SCHEDULED)][:count])


def end_to_end(
    on: Stage, contender: Contender, job: Job, count: int, beside: Callable[[Running], None] = lambda _: None
) -> dict[str, float]:
    """Request in, message back in its queue, and recorded: all of them, by the time that it took from first to last.

    The delay is part of that time. Everybody is at work while the first ones wait, so it cannot be taken off; the runs
    are so long that it matters little, and equally long for all, so that it matters the same.
    """
    with running(on, contender, job) as one:
        one.fill(count)
        one.watch()
        one.start()
        beside(one)
        taken_up = _taken_up(one, PATIENCE)
        before = Cost.of(on, one)
        first, last = _first_and_last(one, count, taken_up)
        cost = Cost.of(on, one).per_hundred_thousand(before, count)
        early = sum(1 for at, due in one.marks.read(ARRIVED) if due and at < due - 0.001)
    return {"per_s": count / (last - first), "early_share": early / count, **cost}


def _first_and_last(one: Running, count: int, taken_up: float) -> tuple[float, float]:
    patience = PATIENCE + one.job.delay_s
    one.wait(one.arrived, count, patience)
    last = one.marks.read(ARRIVED)[count - 1][0]
    if not isinstance(one.contender, Tarry):
        first = tarry.first_claim(one) if one.contender.furnished else one.marks.read(SCHEDULED)[0][0]
        return first, max(last, _last_recorded(one, count, patience))
    if one.job.variant in UNRECORDED:
        return taken_up, last
    recorded = one.wait(lambda: tarry.recorded(one), count, patience)[-1][0]
    return taken_up if one.job.variant else tarry.first_claim(one), max(last, recorded)


def _last_recorded(one: Running, count: int, patience: float) -> float:
    """A contender that writes tarry's store must write every row; the others write with the publish, or nothing."""
    if not one.contender.furnished:
        return 0.0
    one.wait(lambda: one.marks.count(RECORDED), count, patience)
    return one.marks.read(RECORDED)[count - 1][0]


def _taken_up(one: Running, patience: float) -> float:
    """When the first was seen to be scheduled: costs count from here, so that nobody pays for starting.

    Ways to run tarry are compared by this moment too, as not all of them keep an audit.
    """
    count = (lambda: tarry.scheduled(one)) if isinstance(one.contender, Tarry) else one.scheduled
    return one.wait(count, 1, patience)[-1][0]

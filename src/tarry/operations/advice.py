"""Advice about the policies, from the statistics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tarry.analytics.advise import FEWEST_DAYS, FEWEST_MESSAGES, Advice, advise
from tarry.analytics.rollups import (
    Dimension,
    Statistic,
    StatisticFilter,
    StatisticSpan,
    floor,
    read_errors,
    read_progress,
    read_statistics,
)
from tarry.core.json_types import DOCUMENTED
from tarry.operations.context import OperatorContext

USUAL = timedelta(days=7)
BY = (Dimension.POLICY, Dimension.ERROR, Dimension.ATTEMPT)


@dataclass(frozen=True, slots=True)
class PolicyAdvice:
    """What can be better, by the history."""

    __pydantic_config__ = DOCUMENTED

    since: datetime
    """Whole days of UTC are counted."""
    until: datetime
    retries: int
    """Retries in this time whose outcome is known."""
    advice: list[Advice]
    notes: list[str]
    """What limits it: steps that are not counted yet, or too short a time."""


async def advise_policies(context: OperatorContext, *, since: datetime) -> PolicyAdvice:
    """Advice from the retries since then, about the policies as they are now."""
    until = datetime.now(UTC)
    wanted = StatisticFilter(since, until, StatisticSpan.DAY)
    statistics = await read_statistics(context.store, wanted, BY, by_time=True)
    marks = sorted({one.error for one in statistics if one.error})
    errors = await read_errors(context.store, marks, wanted)
    return PolicyAdvice(
        since=floor(since, StatisticSpan.DAY),
        until=until,
        retries=sum(one.counts.outcomes for one in statistics),
        advice=advise(statistics, errors, context.topology.policies),
        notes=await _notes(context, statistics, until),
    )


async def usual_advice(context: OperatorContext) -> PolicyAdvice:
    """From the retries of the last week."""
    return await advise_policies(context, since=datetime.now(UTC) - USUAL)


async def _notes(context: OperatorContext, statistics: list[Statistic], until: datetime) -> list[str]:
    progress = await read_progress(context.store)
    if progress is None:
        return ["The history is not counted yet: a service does that in its audit passes."]
    notes = [f"{text[:1].upper()}{text[1:]}." for text in progress.describe(until)]
    if len({one.starts for one in statistics if one.counts.outcomes}) < FEWEST_DAYS:
        need = f"{FEWEST_MESSAGES} messages and {FEWEST_DAYS} days"
        notes.append(f"Advice takes retries of {need} at least, so that one outage is no evidence.")
    return notes

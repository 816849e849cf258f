"""The judge: compares ledger, arrivals, review and audit with the plan. It knows nothing of how tarry works.

What it cannot account for counts against the run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field

from tests.chaos.evidence import Evidence, Row
from tests.chaos.load.paper import Arrival, Entry
from tests.chaos.load.plan import SCHEDULE_MS, Task

LATE_MS = 2_000
"""Who arrives later than this after the planned moment was held up."""

NAMED = 5


@dataclass(frozen=True)
class Allowance:
    """What a fault may do, and why. Losing a message and bringing it early are not to be had here."""

    duplicates: int = 0
    reason: str = "none: nothing is unconfirmed"
    reviews: str | None = None
    """What the reason of a review must match, for messages that were not planned to end there."""
    review_queues: tuple[str, ...] = ()
    """Only messages of these queues may."""
    clock: bool = True
    """Whether the router's clock is right: else its due moments prove nothing, only the waits do."""
    audit: bool = True
    """Whether the audit must be complete: a Postgres that was set back has forgotten. What it has as claimed was done
    long ago, and `verify` goes on naming it."""
    schedule_ms: tuple[int, ...] = SCHEDULE_MS
    """The shortest waits, where policies differ."""
    gone: int = 0
    """Messages that lay in a queue when its owner deleted it, as the broker counted them."""

    def __add__(self, other: Allowance) -> Allowance:
        """Both faults in one scene."""
        reviews = [one for one in (self.reviews, other.reviews) if one]
        reasons = [one.reason for one in (self, other) if one.duplicates]
        return Allowance(
            duplicates=self.duplicates + other.duplicates,
            reason="; ".join(dict.fromkeys(reasons)) or self.reason,
            reviews="|".join(dict.fromkeys(reviews)) or None,
            review_queues=(*self.review_queues, *other.review_queues),
            clock=self.clock and other.clock,
            audit=self.audit and other.audit,
            schedule_ms=tuple(map(min, self.schedule_ms, other.schedule_ms)),
            gone=self.gone + other.gone,
        )


@dataclass
class Verdict:
    """The row of a report."""

    messages: int = 0
    returns: int = 0
    lost: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    unaccounted: list[str] = field(default_factory=list)
    duplicates: int = 0
    redelivered: int = 0
    """Copies that the broker gave a consumer again because its acknowledgement had got lost: as with any queue."""
    sent_twice: int = 0
    """Copies of what the producer itself published again because a confirm had got lost."""
    dropped: int = 0
    in_review: int = 0
    diverted: int = 0
    """In review although they were not planned to end there, as the fault allows."""
    gone: int = 0
    allowance: Allowance = field(default_factory=Allowance)
    drifts_ms: MutableSequence[int] = field(default_factory=list)
    recovery_s: float | None = None

    @property
    def proven(self) -> bool:
        return not (self.lost or self.early or self.unaccounted) and self.duplicates <= self.allowance.duplicates

    def drift(self, share: float) -> int:
        """Milliseconds; -1 if nothing returned."""
        return self.drifts_ms[min(len(self.drifts_ms) - 1, int(share * len(self.drifts_ms)))] if self.drifts_ms else -1

    def complaints(self) -> list[str]:
        """In words, a few of each kind."""
        found = [
            f"{name}: {len(items)}, for example {'; '.join(items[:NAMED])}"
            for name, items in (("lost", self.lost), ("early", self.early), ("unaccounted", self.unaccounted))
            if items
        ]
        if self.duplicates > self.allowance.duplicates:
            found.append(f"{self.duplicates} duplicates, and at most {self.allowance.duplicates} are explained")
        return found


def judge(evidence: Evidence, allowance: Allowance, healed_ms: Sequence[int]) -> Verdict:
    verdict = Verdict(messages=len(evidence.entries), allowance=allowance, dropped=evidence.dropped)
    known = {entry.task.message_id for entry in evidence.entries.values()}
    verdict.unaccounted += [f"{one} in review was never sent" for one in evidence.reviews if one not in known]
    verdict.unaccounted += [f"arrival {n} was never sent" for n in evidence.arrivals if n not in evidence.entries]
    verdict.in_review = sum(evidence.reviews.values())
    late: list[int] = []
    for entry in evidence.entries.values():
        late += judge_entry(verdict, evidence, entry)
        if allowance.audit:
            row = evidence.rows.get((entry.task.message_id, entry.task.queue))
            verdict.unaccounted += judge_row(entry.task, row, reviewed=entry.task.message_id in evidence.reviews)
    _forgive_gone(verdict)
    verdict.drifts_ms = sorted(verdict.drifts_ms)
    if healed_ms:
        verdict.recovery_s = max(0.0, (max(late, default=0) - max(healed_ms)) / 1000)
    return verdict


def judge_entry(verdict: Verdict, evidence: Evidence, entry: Entry) -> list[int]:
    """One message, without the audit; the moments of its late arrivals."""
    arrivals = evidence.arrivals.get(entry.task.number, [])
    late: list[int] = []
    _judge_end(verdict, evidence, entry, arrivals)
    _judge_copies(verdict, evidence, entry, arrivals)
    _judge_waits(verdict, entry, arrivals, late)
    return late


def _judge_end(verdict: Verdict, evidence: Evidence, entry: Entry, arrivals: Sequence[Arrival]) -> None:
    task, allowance = entry.task, verdict.allowance
    accepted = any(arrival.did == "accept" for arrival in arrivals)
    reviewed = task.message_id in evidence.reviews
    verdict.unaccounted += [f"{task.message_id} came damaged" for one in arrivals if one.did == "damaged"]
    verdict.unaccounted += [f"{task.message_id} came to {one.queue}" for one in arrivals if one.queue != task.queue]
    if not entry.confirmed_ms:
        verdict.unaccounted.append(f"{task.message_id} was never confirmed")
    elif not accepted and not reviewed:
        verdict.lost.append(f"{task.message_id} ({task.queue}, {len(arrivals)} arrivals of {task.fails + 1})")
    elif reviewed and not task.ends_in_review:
        reason = evidence.reasons[task.message_id]
        if allowance.reviews and task.queue in allowance.review_queues and re.search(allowance.reviews, reason):
            verdict.diverted += 1
        else:
            verdict.unaccounted.append(f"{task.message_id} is in review: {reason}")
    elif accepted and task.ends_in_review:
        verdict.unaccounted.append(f"{task.message_id} was to end in review and was accepted")


def _judge_copies(verdict: Verdict, evidence: Evidence, entry: Entry, arrivals: Sequence[Arrival]) -> None:
    """A copy is explained by the broker's own redelivery, or by the producer; what is left is ours."""
    task = entry.task
    copies = max(0, len(arrivals) - task.arrivals)
    of_round = Counter(arrival.round for arrival in arrivals)
    again = min(copies, sum(arrival.redelivered and of_round[arrival.round] > 1 for arrival in arrivals))
    twice = min(copies - again, (entry.tries - 1) * task.arrivals)
    verdict.redelivered += again
    verdict.sent_twice += twice
    verdict.duplicates += copies - again - twice + max(0, evidence.reviews[task.message_id] - entry.tries)


def _judge_waits(verdict: Verdict, entry: Entry, arrivals: Sequence[Arrival], late: list[int]) -> None:
    """By our own clock from failure to arrival, and by the due moment that tarry named."""
    task, allowance = entry.task, verdict.allowance
    for round_ in sorted({arrival.round for arrival in arrivals} - {0}):
        first = min((arrival for arrival in arrivals if arrival.round == round_), key=lambda arrival: arrival.at_ms)
        verdict.returns += 1
        if allowance.clock:
            verdict.drifts_ms.append(first.at_ms - first.due_ms)
        if allowance.clock and first.at_ms < first.due_ms:
            verdict.early.append(f"{task.message_id} round {round_}, {first.due_ms - first.at_ms} ms before due")
        failed = _failed_at(entry, arrivals, round_)
        if failed is None:
            continue  # a copy, counted as such: its request was done again when its first round was over already
        least = task.shortest_wait_ms(round_, allowance.schedule_ms)
        if not allowance.clock:
            verdict.drifts_ms.append(first.at_ms - failed[1] - least)
        if first.at_ms - failed[0] < least and allowance.duplicates and _begun_before(entry, arrivals, first, least):
            verdict.duplicates += 1  # an older request, done again after a crash, had begun this round already
        elif first.at_ms - failed[0] < least:
            verdict.early.append(f"{task.message_id} round {round_} after {first.at_ms - failed[0]} of {least} ms")
        if first.at_ms - failed[1] - least > LATE_MS:
            late.append(first.at_ms)


def _begun_before(entry: Entry, arrivals: Sequence[Arrival], first: Arrival, least: int) -> bool:
    """Whether an earlier failure, the producer's own included, is long enough ago."""
    failed = [one.at_ms for one in arrivals if one.round < first.round and one.did in ("reject", "ask")]
    failed += [entry.at_ms] if entry.task.form == "headers" else []
    return first.at_ms - min(failed) >= least and first.at_ms >= first.due_ms


def _failed_at(entry: Entry, arrivals: Sequence[Arrival], round_: int) -> tuple[int, int] | None:
    """When it had failed at the earliest, and when the broker had its request at the latest.

    Of a message that was there twice, the failure of either copy may have begun the round.
    """
    failed = [arrival for arrival in arrivals if arrival.round < round_ and arrival.did in ("reject", "ask")]
    copied = entry.tries > 1 or len(failed) > len({arrival.round for arrival in failed})
    moments = [arrival.at_ms for arrival in failed if copied or arrival.round == round_ - 1]
    if entry.task.form == "headers" and (copied or round_ == 1):
        moments += [entry.at_ms, entry.confirmed_ms]
    return (min(moments), max(moments)) if moments else None


def judge_row(task: Task, row: Row | None, *, reviewed: bool) -> list[str]:
    """What the audit has wrong about one message."""
    if task.fails == 0:
        return []
    if row is None:
        return [f"{task.message_id} failed and is not in the audit"]
    if reviewed:
        return [] if row.state == "in_review" else [f"{task.message_id} is in review, and {row.state} in the audit"]
    if row.state not in ("returned", "succeeded") or row.returned_round < task.rounds:
        return [f"{task.message_id} is {row.state} in round {row.round} in the audit"]
    return []


def _forgive_gone(verdict: Verdict) -> None:
    """What its owner deleted with the queue was not lost by anybody; the broker's own count must explain it."""
    if verdict.lost and len(verdict.lost) <= verdict.allowance.gone:
        verdict.gone = len(verdict.lost)
        verdict.lost.clear()

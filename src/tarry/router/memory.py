"""What this process knows of its latest claims: all there is to tell duplicates by while Postgres is away.

The rules are those of the claim in Postgres (`audit/sql/queries.sql`), as far as one router can know.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tarry.audit.records import Claim, Claimed, Granted, Record
from tarry.contract.identity import same_body

REMEMBERED = 50_000
"""Claims kept; at full speed that is some ten seconds, and a few megabytes."""


UNCONFIRMED = 0
"""In place of a due moment: claimed, and not known to be anywhere."""

IN_REVIEW = 1
"""The due moment of what is in review."""


class Known(NamedTuple):
    """What is remembered of one retry."""

    round: int
    due_ms: int
    retry_count: int
    since_ms: int | None = None
    identity: str | None = None
    death: str | None = None
    guessed_round: int = 0
    """The latest round whose request did not say which round had failed."""


class Memory:
    """Retries by id, and the latest one for each queue, message id and body."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._by_body: dict[str, str] = {}

    def claim(self, claims: Sequence[Claim]) -> Claimed:
        """What we do not know is taken on trust."""
        answer = Claimed({}, {})
        for claim in claims:
            found = self._named(claim) if claim.knows_round else self._recognised(claim)
            if isinstance(found, Granted):
                answer.granted[claim.retry_id] = found
                self.remember([claim], answer)  # the next one of the batch may be for the same retry
            else:
                answer.duplicate_of[claim.retry_id] = found
        return answer

    def guessed_round(self, retry: str) -> int:
        known = self._known.get(retry)
        return known.guessed_round if known is not None else 0

    def _named(self, claim: Claim) -> Granted | str:
        """A request that says which round failed."""
        known = self._known.get(claim.retry_id)
        if known is None or claim.round > known.round:
            return _granted(claim, claim.retry_id, claim.round, known)
        if not _same(claim, known) or claim.round <= known.guessed_round:
            return self._named(claim.set_apart())
        takes_over = known.due_ms == UNCONFIRMED and claim.round == known.round
        # A claim that was never confirmed is taken up again: it is not being moved, or we would not be asked.
        return _granted(claim, claim.retry_id, claim.round, known) if takes_over else claim.retry_id

    def _recognised(self, claim: Claim) -> Granted | str:
        """A request that is known, if at all, by its identity."""
        retry = self._by_body.get(same_body(claim.identity)) if claim.matchable and claim.identity else None
        known = self._known.get(retry) if retry is not None else None
        if retry is None or known is None or known.due_ms == IN_REVIEW:
            return self._new(claim)
        if known.due_ms != UNCONFIRMED and known.due_ms <= self._now_ms():
            return _granted(claim, retry, known.round + 1, known)
        if known.identity != claim.identity or _other_death(claim, known, retry):
            return self._new(claim)
        return _granted(claim, retry, known.round, known) if known.due_ms == UNCONFIRMED else retry

    def _new(self, claim: Claim) -> Granted:
        own = str(uuid.uuid4()) if claim.retry_id in self._known else claim.retry_id
        return _granted(claim, own, claim.round, None)

    def remember(self, claims: Sequence[Claim], answer: Claimed) -> None:
        for claim in claims:
            if (one := answer.granted.get(claim.retry_id)) is not None:
                before = self._known.get(one.retry_id)
                guessed_round = before.guessed_round if before is not None else 0
                takes_over = before is not None and before.round == one.round
                if not claim.knows_round and not takes_over and one.round > 1 and not _again(claim, one, before):
                    guessed_round = one.round
                known = Known(one.round, UNCONFIRMED, one.retry_count, one.since_ms, claim.identity, claim.death)
                self._keep(one.retry_id, known._replace(guessed_round=guessed_round))

    def scheduled(self, records: Iterable[Record]) -> None:
        for record in records:
            known = Known(
                *(record.round, record.due_ms or IN_REVIEW, record.retry_count, record.since_ms),
                *(record.identity, record.death, self.guessed_round(record.retry_id)),
            )
            self._keep(record.retry_id, known)

    def _keep(self, retry: str, known: Known) -> None:
        self._known[retry] = known
        self._known.move_to_end(retry)
        if known.identity is not None:
            self._by_body[same_body(known.identity)] = retry
        if len(self._known) > REMEMBERED:
            oldest, gone = self._known.popitem(last=False)
            body = same_body(gone.identity) if gone.identity is not None else ""
            if self._by_body.get(body) == oldest:
                del self._by_body[body]


def _granted(claim: Claim, retry: str, round_: int, known: Known | None) -> Granted:
    """Counts are never given back by lost headers."""
    if known is None:
        return Granted(retry, round_, claim.retry_count, claim.since_ms)
    since_ms = claim.since_ms if known.since_ms is None else known.since_ms
    return Granted(retry, round_, max(claim.retry_count, known.retry_count), since_ms)


def _same(claim: Claim, known: Known) -> bool:
    return claim.identity is None or known.identity is None or claim.identity == known.identity


def _again(claim: Claim, granted: Granted, before: Known | None) -> bool:
    """Whether the request is the one before, delivered again."""
    if before is None or claim.identity != before.identity:
        return False
    if claim.death is None:
        return claim.redelivered
    return claim.death == before.death or claim.retry_id == granted.retry_id


def _other_death(claim: Claim, known: Known, retry: str) -> bool:
    """Whether an equal message was dead-lettered at another time, and so is another one."""
    if not claim.by_content or claim.death is None or known.death is None:
        return False
    return claim.death != known.death and claim.retry_id != retry

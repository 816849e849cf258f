"""The router's ledger: claims and records in Postgres, or in memory and the spool while Postgres is unavailable.

Records that cannot be written are published to the spool in the broker, and the tap writes them to Postgres. The body
of a spool message has the fields of the first version, which routers of that version can also read; fields added later
are in headers.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import structlog

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import entry, pick
from tarry.amqp.properties import PERSISTENT, Properties
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.contract.identity import same_body
from tarry.core.budgets import Slot
from tarry.core.names import Names
from tarry.core.policy import Policy
from tarry.core.states import Note, State
from tarry.errors import AuditError, AuditUnavailableError
from tarry.router.batches import isolate_poison
from tarry.router.pipeline import Publish
from tarry.store.claims import Store
from tarry.store.errors import kind_of
from tarry.store.rows import Charge, Charged, Claim, Claimed, Granted, Leg, LegKey, Record

IN_HEADERS = (
    *("identity", "death", "guessed_round", "owner", "job_type", "priority", "hint_ms"),
    *("deferred_from_ms", "budget"),
)
_NUMBERS = frozenset({"guessed_round", "hint_ms", "deferred_from_ms"})


def spool_message(record: Record, names: Names) -> Message:
    """The spool message for a record."""
    fields = record._replace(body=None, properties=None)._asdict()
    later = b"".join(entry(name, value) for name in IN_HEADERS if (value := fields.pop(name)))
    for name, value in (("body", record.body), ("properties", record.properties)):
        fields[name] = None if value is None else b64encode(value).decode()
    body = json.dumps(fields).encode()
    properties = Properties(content_type=b"application/json", delivery_mode=PERSISTENT, headers=later)
    return Message(names.spool, "", properties, body, f"spool:{record.retry_id}:{record.round}")


def spooled_record(delivery: Delivery) -> Record:
    """The record of a spool message. Raises ValueError, TypeError or KeyError if it is not a spool message. Fields that
    only a later version knows are ignored.
    """
    try:
        fields: dict[str, Any] = json.loads(delivery.body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if type(fields["round"]) is not int:
        raise TypeError("its round is not a number")
    for name in ("body", "properties"):
        fields[name] = None if fields[name] is None else b64decode(fields[name])
    fields |= {name: value for name in IN_HEADERS if (value := _header(delivery, name)) is not None}
    fields["state"] = State(fields["state"])
    return Record(**{name: value for name, value in fields.items() if name in Record._fields})


def _header(delivery: Delivery, name: str) -> str | int | None:
    found = pick(delivery.properties.headers or b"", {name.encode()}).get(name.encode())
    if found is None:
        return None
    return found.integer() if name in _NUMBERS else found.text()


LEG = b"leg"
"""The `type` property of a spool message that contains a leg."""


def spooled_leg_message(leg: Leg, names: Names) -> Message:
    properties = Properties(content_type=b"application/json", delivery_mode=PERSISTENT, type=LEG)
    body = json.dumps(leg._asdict()).encode()
    return Message(names.spool, "", properties, body, f"spool:{leg.retry_id}:{leg.round}:{leg.leg}")


def spooled_leg(delivery: Delivery) -> Leg:
    """The leg of a spool message. Raises ValueError, TypeError or KeyError if it is not one."""
    try:
        fields: dict[str, Any] = json.loads(delivery.body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    found = Leg(**{name: fields[name] for name in Leg._fields})
    numbers = (found.round, found.due_ms, found.leg, found.at_ms, found.delay_ms, found.wait_ms or 0)
    texts = (fields["retry_id"], fields["content"], fields["tier"])
    if any(type(number) is not int for number in numbers) or any(not isinstance(text, str) for text in texts):
        raise TypeError("a field of it has the wrong type")
    return found


REMEMBERED = 50_000
"""Number of claims kept: about ten seconds of claims at full speed, in a few megabytes."""


UNCONFIRMED = 0
"""Used as the due time of a retry that is claimed but not confirmed to be in any queue."""

OVER = 1
"""Used as the due time of a retry that is in review or was skipped."""


class Known(NamedTuple):
    """What is remembered about one retry."""

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
        """Decides claims from memory. A claim of a retry that is not remembered is granted."""
        answer = Claimed({}, {})
        for claim in claims:
            found = self._named(claim) if claim.knows_round else self._recognised(claim)
            if isinstance(found, Granted):
                answer.granted[claim.retry_id] = found
                self.remember([claim], answer)  # a later claim of the batch may be for the same retry
            else:
                answer.duplicate_of[claim.retry_id] = found
        return answer

    def guessed_round(self, retry: str) -> int:
        known = self._known.get(retry)
        return known.guessed_round if known is not None else 0

    def _named(self, claim: Claim) -> Granted | str:
        """Decides the claim of a request that says which round failed."""
        known = self._known.get(claim.retry_id)
        if known is None or claim.round > known.round:
            return _granted(claim, claim.retry_id, claim.round, known)
        if not _same(claim, known) or claim.round <= known.guessed_round:
            return self._named(claim.set_apart())
        takes_over = known.due_ms == UNCONFIRMED and claim.round == known.round
        # An unconfirmed claim is granted again. The retry is not being moved, or this claim would not have been made.
        return _granted(claim, claim.retry_id, claim.round, known) if takes_over else claim.retry_id

    def _recognised(self, claim: Claim) -> Granted | str:
        """Decides the claim of a request that can be recognised only by its identity, if at all."""
        retry = self._by_body.get(same_body(claim.identity)) if claim.matchable and claim.identity else None
        known = self._known.get(retry) if retry is not None else None
        if retry is None or known is None or known.due_ms == OVER:
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
                *(record.round, record.due_ms or OVER, record.retry_count, record.since_ms),
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
    """A request that lost its headers never lowers a count."""
    if known is None:
        return Granted(retry, round_, claim.retry_count, claim.since_ms)
    since_ms = claim.since_ms if known.since_ms is None else known.since_ms
    return Granted(retry, round_, max(claim.retry_count, known.retry_count), since_ms)


def _same(claim: Claim, known: Known) -> bool:
    return claim.identity is None or known.identity is None or claim.identity == known.identity


def _again(claim: Claim, granted: Granted, before: Known | None) -> bool:
    """Whether the request is the previous one, delivered again."""
    if before is None or claim.identity != before.identity:
        return False
    if claim.death is None:
        return claim.redelivered
    return claim.death == before.death or claim.retry_id == granted.retry_id


def _other_death(claim: Claim, known: Known, retry: str) -> bool:
    """Whether an equal message was dead-lettered at a different time, and is therefore a different message."""
    if not claim.by_content or claim.death is None or known.death is None:
        return False
    return claim.death != known.death and claim.retry_id != retry


log = structlog.get_logger()

CHECK_EVERY = 1.0
"""Seconds between checks of an unavailable Postgres, and between attempts to publish to the spool."""


class ResilientLedger:
    """Claims and records in Postgres. From the first failure until Postgres answers again, claims are decided from
    memory and records go to the spool.
    """

    def __init__(self, store: Store, publish: Publish, names: Names, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._publish = publish
        self._names = names
        self._memory = Memory(now_ms)
        self._watch: asyncio.Task[None] | None = None
        self._legs: OrderedDict[tuple[str, int, int, str], int] = OrderedDict()
        """By retry id, round and due time, the latest leg that this router has sent."""
        self._to_unclaim: set[tuple[str, int]] = set()
        """Claims to give back as soon as Postgres accepts it."""
        self.trouble: AuditError | None = AuditUnavailableError("Postgres has not answered yet.")
        """Why Postgres is not in use now, or None."""
        self.spooled = 0
        self.refused = 0

    async def claim(self, claims: Sequence[Claim]) -> Claimed:
        """Claims in Postgres or in memory. A claim that Postgres refuses is decided from memory."""
        answer = Claimed({}, {})
        for part in await isolate_poison(claims, self._claim, self._claim_from_memory, AuditError):
            answer.granted.update(part.granted)
            answer.duplicate_of.update(part.duplicate_of)
        return answer

    async def charge(
        self, policy: Policy, charges: Sequence[Charge], slots: Sequence[Slot], *, is_all: bool
    ) -> list[Charged]:
        """Charges budgets. Without an answer of Postgres, or if it refuses one, there is no answer about that retry."""

        async def ask(part: Sequence[Charge]) -> list[Charged]:
            if self.trouble is not None:
                return []
            try:
                return await self._store.charge(policy, part, slots, is_all=is_all)
            except AuditUnavailableError as error:
                self._lost(error)
                return []

        async def refuse(charge: Charge, error: Exception) -> list[Charged]:
            self._refuse(charge.retry_id, error)
            return []

        return [one for part in await isolate_poison(charges, ask, refuse, AuditError) for one in part]

    async def unclaim(self, claimed: Sequence[tuple[str, int]]) -> None:
        """Gives back unpublished claims. Their requests are delivered again unless another router handled them."""
        self._to_unclaim.update(claimed)
        if self.trouble is None:
            try:
                await self._unclaim_all()
            except AuditError as error:
                self._lost(error)

    async def record(self, records: Sequence[Record]) -> None:
        """Records in Postgres or in the spool. A record that Postgres refuses is stored in part."""
        await isolate_poison(records, self._record, self._record_in_part, AuditError)

    async def legs_sent_on(self, legs: Sequence[LegKey]) -> set[LegKey]:
        """Those of these legs whose next leg is known to be on the broker. If in doubt, it is not."""
        known = {leg for leg in legs if self._legs.get(leg[:4], 0) > leg.leg}
        asked = [leg for leg in legs if leg not in known]
        if asked and self.trouble is None:
            try:
                known |= await self._store.legs_sent_on(asked)
            except AuditUnavailableError as error:
                self._lost(error)
            except AuditError as error:
                log.warning("postgres refused a question about legs", error=str(error))
        return known

    async def record_legs(self, legs: Sequence[Leg]) -> None:
        """Records in Postgres or in the spool."""
        for leg in legs:
            self._legs[leg[:4]] = leg.leg
            self._legs.move_to_end(leg[:4])
        while len(self._legs) > REMEMBERED:
            self._legs.popitem(last=False)
        await isolate_poison(legs, self._record_legs, self._refuse_leg, AuditError)

    async def _record_legs(self, legs: Sequence[Leg]) -> None:
        if self.trouble is None:
            try:
                await self._store.record_legs(legs)
            except AuditUnavailableError as error:
                self._lost(error)
            else:
                return
        await self._to_spool([spooled_leg_message(leg, self._names) for leg in legs])

    async def _refuse_leg(self, leg: Leg, error: Exception) -> None:
        self._refuse(leg.retry_id, error)

    async def duplicates(self, found: Sequence[tuple[str, int]]) -> None:
        await self._mention(lambda: self._store.note(found, Note.DUPLICATE, "the same request was delivered again"))

    async def note_unroutable(self, found: Sequence[tuple[str, int]]) -> None:
        if found:
            await self._mention(lambda: self._store.mark_unroutable(found))

    def store_is_ready(self) -> None:
        """Uses Postgres from now on: its tables exist."""
        self.trouble = None

    def store_is_unavailable(self, error: AuditError) -> None:
        """Goes on without Postgres, whose tables may not exist yet."""
        self.trouble = error

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch

    async def _mention(self, write: Callable[[], Awaitable[None]]) -> None:
        """Writes a note to the history. Nothing waits for it: if Postgres does not take it, the note is dropped."""
        if self.trouble is None:
            try:
                await write()
            except AuditUnavailableError as error:
                self._lost(error)
            except AuditError as error:
                log.warning("postgres refused a history note", error=str(error))

    async def _claim(self, claims: Sequence[Claim]) -> Claimed:
        if self.trouble is not None:
            return self._memory.claim(claims)
        try:
            answer = await self._store.claim(claims)
        except AuditUnavailableError as error:
            self._lost(error)
            return self._memory.claim(claims)
        self._memory.remember(claims, answer)
        return answer

    async def _claim_from_memory(self, claim: Claim, error: Exception) -> Claimed:
        self._refuse(claim.retry_id, error)
        return self._memory.claim([claim])

    async def _record(self, records: Sequence[Record]) -> None:
        self._memory.scheduled(records)
        if self.trouble is None:
            try:
                await self._store.record(records)
            except AuditUnavailableError as error:
                self._lost(error)
            else:
                return
        await self._spool(records)

    async def _record_in_part(self, whole: Record, error: Exception) -> None:
        """Records it without the payload and without texts of the request. A skipped one has no message on the broker:
        it goes to the spool whole, and from there to review if Postgres refuses it again.
        """
        self._refuse(whole.retry_id, error)
        if whole.state is State.SKIPPED:
            return await self._spool([whole])
        bare = whole._replace(
            body=None, properties=None, message_id=None, error_type=None, error_reason=None, exchange=""
        )._replace(owner=None, job_type=None, priority=None)
        if bare != whole:
            await self.record([bare._replace(routing_key="", reason="stored in part")])
        return None

    def _refuse(self, retry_id: str, error: Exception) -> None:
        self.refused += 1
        log.error("postgres refused a record", retry_id=retry_id, error=str(error))

    async def _spool(self, records: Sequence[Record]) -> None:
        """Publishes records to the spool in the broker; the tap writes them when Postgres is available again."""
        guessed = [record._replace(guessed_round=self._memory.guessed_round(record.retry_id)) for record in records]
        await self._to_spool([spool_message(record, self._names) for record in guessed])

    async def _to_spool(self, messages: Sequence[Message]) -> None:
        left = messages
        while left:
            outcomes = await self._publish(left)
            left = [one for one, outcome in zip(left, outcomes, strict=True) if outcome is not PublishOutcome.CONFIRMED]
            if left:
                await asyncio.sleep(CHECK_EVERY)
        self.spooled += len(messages)

    def _lost(self, error: AuditError) -> None:
        if self.trouble is None:
            self.trouble = error
            log.warning("postgres unavailable, retries continue", kind=kind_of(error), error=str(error))
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._until_settled())

    async def _unclaim_all(self) -> None:
        """Gives back the claims that Postgres holds for this router and that will not be completed."""
        if self._store.has_unconfirmed:
            await self._store.release_unconfirmed()
        if released := sorted(self._to_unclaim):
            await self._store.release(released)
            self._to_unclaim.difference_update(released)

    async def _until_settled(self) -> None:
        """Runs until Postgres is available and every claim that it may have granted in the meantime is released."""
        while self.trouble is not None or self._to_unclaim or self._store.has_unconfirmed:
            await asyncio.sleep(CHECK_EVERY)
            try:
                await self._store.ping()
                await self._unclaim_all()
            except AuditError as error:
                self.trouble = error
            else:
                if self.trouble is not None:
                    log.info("postgres available again", spooled=self.spooled)
                self.trouble = None

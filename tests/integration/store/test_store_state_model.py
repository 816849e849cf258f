"""Requests, crashes, late records and returns in any order, against a model of a dozen lines.

A trigger writes down every change of state that the queries make; afterwards each must be in the table of transitions.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tarry.core.states import Note, State
from tarry.store.database import query as control_query
from tarry.store.rows import Record, Return
from tests.integration.store.transitions import may_follow
from tests.support.audit_store import QUEUE, AuditStore, id_of, now_ms, request

RECORDER = """
create table if not exists move (before text, after text, before_round int, after_round int);
create or replace function write_move() returns trigger language plpgsql as $$
begin
    if tg_op = 'INSERT' then
        insert into move values (null, new.state, null, new.round);
    elsif (old.state, old.round) <> (new.state, new.round) then
        insert into move values (old.state, new.state, old.round, new.round);
    end if;
    return null;
end $$;
create or replace trigger write_move after insert or update on retry for each row execute function write_move();
"""
HOLD = """
insert into paused_destination (destination, kind, name, state, bound_at)
values ('orders', 'queue', 'orders', 'holding', '2000-01-01')
on conflict do nothing
"""


OVER = (State.SUCCEEDED, State.IN_REVIEW, State.CANCELLED, State.DISCARDED, State.SKIPPED)
"""A request without headers for one of these is a new retry; the old row stays as it is."""


@dataclass
class Known:
    """What the model knows of one retry."""

    message: str
    retry: str
    state: State | None = None
    round: int = 0
    count: int = 0
    waiting: bool = False
    free: bool = False
    """Whether its latest round spends no attempt."""
    guessed_round: int = 0
    """The latest round whose request did not say which round had failed."""
    seen: set[int] = field(default_factory=set)


class Life(RuleBasedStateMachine):
    store: AuditStore

    def __init__(self) -> None:
        super().__init__()
        self.known = [Known(message, id_of(message)) for message in (str(uuid.uuid4()) for _ in range(3))]

    which = st.integers(0, 2)

    @rule(which=which, headers=st.booleans(), redelivered=st.booleans(), stale=st.integers(0, 1))
    def ask(self, which: int, headers: bool, redelivered: bool, stale: int) -> None:  # noqa: FBT001
        one = self.known[which]
        failed = max(0, one.round - stale) if headers and one.state is not None else None
        wanted = request(one.message, round_=failed, count=one.count, redelivered=redelivered)
        granted = self.store.claim(wanted)
        expected = self._verdict(one, None if failed is None else failed + 1)
        assert ("duplicate" if not granted else "own" if one.retry in granted else "new") == expected
        if expected == "new":
            self.store.sql.execute("delete from retry where id = any(%s::uuid[])", [list(granted)])
        if expected == "own":
            self._begin(one, failed, redelivered=redelivered)
            assert (granted[one.retry].round, granted[one.retry].retry_count) == (one.round, one.count)

    @staticmethod
    def _begin(one: Known, failed: int | None, *, redelivered: bool) -> None:
        takes_over = one.state is State.CLAIMED and failed in (None, one.round - 1)
        if not takes_over:
            one.free = failed is None and redelivered and not one.free and one.state is not None
            if failed is None and one.state is not None and not redelivered:
                one.guessed_round = one.round + 1
            one.count = max(0, one.count - one.free)
        one.round = failed + 1 if failed is not None else max(1, one.round + (not takes_over))
        one.state = State.CLAIMED

    @staticmethod
    def _verdict(one: Known, round_: int | None) -> str:
        if one.state is None:
            return "own"
        if round_ is not None and round_ <= one.round:
            taken_up = one.state is State.CLAIMED and round_ == one.round
            return "new" if round_ <= one.guessed_round else "own" if taken_up else "duplicate"
        if round_ is not None or one.state is State.CLAIMED:
            return "own"
        if one.state in OVER:
            return "new"
        return "duplicate" if one.state in (State.SCHEDULED, State.UNROUTABLE) and one.waiting else "own"

    @rule(which=which, waits=st.booleans())
    def record(self, which: int, waits: bool) -> None:  # noqa: FBT001
        one = self.known[which]
        if one.state is not State.CLAIMED:
            return
        one.count += 1
        self.store.schedule(one.retry, one.round, due_in_ms=600_000 if waits else -10, count=one.count)
        one.waiting = waits
        if one.round in one.seen:
            return
        one.state = State.SCHEDULED

    @rule(which=which)
    def record_a_round_that_postgres_did_not_see_claimed(self, which: int) -> None:
        one = self.known[which]
        one.round, one.count, one.state, one.waiting = one.round + 1, one.count + 1, State.SCHEDULED, False
        one.free = False
        self.store.schedule(one.retry, one.round, due_in_ms=-10, count=one.count)

    @precondition(lambda self: any(one.round > 1 for one in self.known))
    @rule(which=which)
    def record_late(self, which: int) -> None:
        """Through the spool, when a later round has begun: nothing changes but the history."""
        one = self.known[which]
        if one.round > 1:
            self.store.schedule(one.retry, one.round - 1, due_in_ms=-10_000)

    @rule(which=which, again=st.booleans())
    def see(self, which: int, again: bool) -> None:  # noqa: FBT001
        one = self.known[which]
        if one.state is None:
            return
        at = now_ms()
        sighting = Return(one.retry, one.round, QUEUE, one.count, at - 5, at, redelivered=again)
        self.store.do(self.store.one.returned([sighting] * (1 + again)))
        open_ = (State.CLAIMED, State.SCHEDULED, State.HELD, State.UNROUTABLE)
        if one.state in (*open_, State.CANCELLED, State.SKIPPED) and (
            one.round not in one.seen or one.state in (State.UNROUTABLE, State.HELD)
        ):
            one.state = State.RETURNED
        one.seen.add(one.round)

    @rule(which=which)
    def mark_unroutable(self, which: int) -> None:
        one = self.known[which]
        if one.state in (State.SCHEDULED, State.HELD, State.RETURNED):
            self.store.do(self.store.one.mark_unroutable([(one.retry, one.round)]))
            one.state = State.UNROUTABLE

    @rule(which=which)
    def cancel(self, which: int) -> None:
        one = self.known[which]
        if one.state is not None:
            at = now_ms()
            self.store.do(self.store.one.cancelled([Return(one.retry, one.round, QUEUE, 1, at, at, redelivered=False)]))
            if one.state in (State.CLAIMED, State.SCHEDULED, State.HELD, State.UNROUTABLE):
                one.state = State.CANCELLED

    @rule()
    def pause(self) -> None:
        """What is past its due moment is held; what is not, or is not on its way, is not."""
        self.store.sql.execute(HOLD)
        self.store.sql.execute(
            control_query("mark_held"), {"margin": timedelta(0), "seen_within": timedelta(0), "actor": "watcher"}
        )
        for one in self.known:
            if one.state is not None and self.store.state(one.retry)[0] == State.HELD:
                assert one.state is State.HELD or (one.state in (State.SCHEDULED, State.UNROUTABLE) and not one.waiting)
                one.state = State.HELD

    @rule(which=which, kind=st.sampled_from(["cancel", "retry_now"]))
    def divert(self, which: int, kind: str) -> None:
        """An operator cancels it, which ends the round; or retries it now, which begins the next one at once."""
        one = self.known[which]
        if one.state not in (State.SCHEDULED, State.HELD):
            return
        wish = {"id": str(uuid.uuid4()), "retry_id": one.retry, "round": one.round, "kind": kind, "actor": "ann"}
        self.store.sql.execute(control_query("ask_diversion"), wish | {"reason": None, "on_release": False})
        copy = {"now_ms": now_ms(), "tier": "retry.relay", "properties": b""}
        self.store.sql.execute(control_query("cancel" if kind == "cancel" else "begin_copy"), wish | copy)
        if kind == "cancel":
            one.state = State.CANCELLED
        else:
            one.state, one.round, one.waiting = State.SCHEDULED, one.round + 1, False

    @rule(which=which)
    def review(self, which: int) -> None:
        one = self.known[which]
        if one.state in (State.CLAIMED, State.SCHEDULED, State.UNROUTABLE, State.RETURNED):
            self.store.record(Record(one.retry, one.round, State.IN_REVIEW, QUEUE, retry_count=one.count))
            one.state = State.IN_REVIEW

    @rule(which=which)
    def skip(self, which: int) -> None:
        """Ends only what is claimed: anything else has a message on the broker, or is over."""
        one = self.known[which]
        if one.state is not None:
            self.store.record(Record(one.retry, one.round, State.SKIPPED, QUEUE, reason="gone", retry_count=one.count))
            if one.state is State.CLAIMED:
                one.state = State.SKIPPED

    @rule(which=which)
    def schedule_what_another_router_skipped(self, which: int) -> None:
        one = self.known[which]
        if one.state is State.SKIPPED:
            self.store.schedule(one.retry, one.round, due_in_ms=600_000, count=one.count)
            one.state, one.waiting = State.SCHEDULED, True

    @invariant()
    def agrees(self) -> None:
        for one in self.known:
            if one.state is not None:
                assert self.store.state(one.retry) == (one.state, one.round, one.count)


@pytest.fixture
def recorded(store: AuditStore) -> Iterator[AuditStore]:
    store.sql.execute(RECORDER)
    yield store
    found = store.sql.execute("select distinct before, after, after_round > before_round from move").fetchall()
    assert len(found) > 10, "the machine went nowhere"
    wrong = [
        (before, after, later)
        for before, after, later in found
        if not may_follow(State(before) if before else None, State(after), later_round=bool(later))
    ]
    assert wrong == []


def test_every_change_of_state_is_in_the_table_and_the_model_agrees(recorded: AuditStore) -> None:
    class LifeInThisStore(Life):
        store = recorded

    thrifty = settings(
        max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    run_state_machine_as_test(LifeInThisStore, settings=thrifty)


def test_the_checks_in_the_schema_name_the_states_and_notes_of_the_core(store: AuditStore) -> None:
    asked = "select conname, pg_get_constraintdef(oid) from pg_constraint where conname ~ '_state$'"
    found = {name: set(text.split("'")[1::2]) for name, text in store.sql.execute(asked).fetchall()}
    assert found["retry_state"] == {state.value for state in State}
    assert found["transition_state"] == {one.value for one in (*State, *Note)}

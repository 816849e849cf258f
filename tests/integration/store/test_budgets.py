"""The charge: exact with several connections, the same answer when it is asked again, and no deadlock."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tarry.core.budgets import Slot, slots
from tarry.core.policy import Policy
from tarry.core.windows import all_open, next_open
from tarry.store.claims import Store
from tarry.store.retention import prune
from tarry.store.rows import Charge, Charged, ChargeOutcome
from tests.support.audit_store import AuditStore, id_of, now_ms, request
from tests.support.store import in_session

HOUR = 3_600_000
START = 1_900_000_800_000 // HOUR * HOUR
"""The beginning of an hour to come."""
NEVER = START + 400 * 24 * HOUR
DAILY = {"per": "owner", "limit": 3, "every": "1h"}


def policy(*budgets: dict[str, Any], **fields: Any) -> Policy:
    about = {"name": "p", "schedule": ["2s"], "max_retries": 3, "budget": list(budgets or [DAILY])}
    return Policy.model_validate(about | fields)


def hours(of: Policy, number: int, start: int = START) -> list[Slot]:
    return list(slots(of.budgets, of.windows, start, start + number * HOUR - 1, 125))


def charge(
    owner: str | None = "acme", *, slot: int = 1, queue: str = "q", latest: int = NEVER, draw: int = 0
) -> Charge:
    due_ms = START + (slot - 1) * HOUR + 60_000
    return Charge(str(uuid.uuid4()), 1, owner, queue, slot, due_ms, latest, draw, now_ms=START)


def again(of: Charge, hour: int) -> Charge:
    """The same retry, whose request is delivered again in a later hour."""
    begins = START + hour * HOUR
    return of._replace(slot=hour + 1, due_ms=begins + 60_000, now_ms=begins + 30_000)


def ask(
    store: AuditStore, of: Policy, charges: Sequence[Charge], number: int = 12, *, is_all: bool = True
) -> list[Charged]:
    """The answers, in the order of the charges."""
    found: list[Charged] = store.do(store.one.charge(of, charges, hours(of, number), is_all=is_all))
    by_id = {one.retry_id: one for one in found}
    return [by_id[one.retry_id] for one in charges]


def hours_of(answers: Sequence[Charged]) -> list[int | None]:
    """In which hour each of them comes due, counted from 0; None if it is not charged."""
    return [None if one.due_ms is None else (one.due_ms - START) // HOUR for one in answers]


def used(store: AuditStore) -> dict[tuple[str, str, int], int]:
    rows = store.sql.execute(
        "select budget, subject, extract(epoch from starts) * 1000, used from budget_use"
    ).fetchall()
    return {(budget, subject, (int(starts) - START) // HOUR): number for budget, subject, starts, number in rows}


def test_the_first_later_hour_with_room_is_charged(store: AuditStore) -> None:
    plain = policy()
    answers = ask(store, plain, [charge() for _ in range(8)])
    assert sorted(map(str, hours_of(answers))) == ["0", "0", "0", "1", "1", "1", "2", "2"]
    assert Counter(one.full for one in answers) == {None: 3, "p/owner/1h/retries/UTC": 5}
    assert {one.due_ms for one in answers} == {START + 60_000, START + HOUR, START + 2 * HOUR}
    more = ask(store, plain, [charge("other"), charge(slot=2), charge(slot=3), charge(slot=9)])
    assert hours_of(more) == [0, 2, 3, 8]
    assert used(store) == {
        ("p/owner/1h/retries/UTC", "acme", hour): number for hour, number in enumerate([3, 3, 3, 1])
    } | {
        ("p/owner/1h/retries/UTC", "acme", 8): 1,
        ("p/owner/1h/retries/UTC", "other", 0): 1,
    }


def test_the_answer_is_the_same_when_it_is_asked_again(store: AuditStore) -> None:
    plain = policy(DAILY, {"per": "policy", "limit": 5, "every": "1d", "over": "review"})
    asked = [charge() for _ in range(7)]
    first = ask(store, plain, asked)
    before = used(store)
    assert Counter(one.outcome for one in first) == {ChargeOutcome.CHARGED: 5, ChargeOutcome.REVIEW: 2}
    later = [one._replace(slot=4, due_ms=one.due_ms + 3 * HOUR, draw=5) for one in asked]
    assert ask(store, plain, later) == first
    assert ask(store, policy(DAILY | {"limit": 1}), asked) == first
    assert used(store) == before
    assert ask(store, plain, [asked[0]._replace(round=2)])[0].outcome is ChargeOutcome.REVIEW


def test_a_retry_that_is_overdue_is_charged_for_the_period_it_comes_due_in(store: AuditStore) -> None:
    """Its router was killed, and no other one ran: without that, the later period has one too many."""
    hourly, per_policy = "p/owner/1h/retries/UTC", "p/policy/1mo/retries/UTC"
    plain = policy(DAILY, {"per": "policy", "limit": 100, "every": "1mo"})
    asked = [charge() for _ in range(3)]
    ask(store, plain, asked)
    assert hours_of(ask(store, plain, [again(asked[0], 1), charge(slot=2), charge(slot=2)])) == [1, 1, 1]
    month = min(hour for budget, _, hour in used(store) if budget == per_policy)
    assert used(store) == {(hourly, "acme", 0): 3, (hourly, "acme", 1): 3, (per_policy, "", month): 5}
    late = again(asked[1], 1)
    assert hours_of(ask(store, plain, [late, again(asked[0], 1)])) == [2, 1], "that hour is full"
    assert ask(store, plain, [late]) == ask(store, plain, [late._replace(due_ms=late.due_ms + 1)]), (
        "not overdue any more"
    )
    assert used(store) == {
        (hourly, "acme", 0): 3,
        (hourly, "acme", 1): 3,
        (hourly, "acme", 2): 1,
        (per_policy, "", month): 5,
    }


def test_what_is_not_retried_after_all_is_charged_in_no_period_to_come(store: AuditStore) -> None:
    per_day = {"per": "queue", "limit": 1, "every": "1d", "zone": "Etc/GMT+3"}
    plain = policy(DAILY | {"limit": 1, "over": "review"}, per_day)
    first = charge()
    ask(store, plain, [first])
    ask(store, policy(DAILY | {"limit": 1}), [charge(slot=2)])
    refused = ask(store, plain, [again(first, 1)])[0]
    assert (refused.outcome, refused.due_ms) == (ChargeOutcome.REVIEW, None)
    assert ask(store, plain, [again(first, 2)])[0] == refused
    assert [number for (budget, _, _), number in used(store).items() if "queue" in budget] == [0]


def test_what_is_deferred_to_another_day_leaves_its_room_to_others(store: AuditStore) -> None:
    per_day = {"per": "queue", "limit": 1, "every": "1d"}
    both = policy(per_day, {"per": "owner", "limit": 1, "every": "1h"})
    usable = hours(both, 40)
    first = charge()
    ask(store, both, [first], 40)
    ask(store, policy({"per": "owner", "limit": 1, "every": "1h"}), [charge(slot=slot) for slot in range(2, 30)], 40)
    (moved,) = ask(store, both, [again(first, 1)], 40)
    days = [both.budgets[0].period(START), both.budgets[0].period(moved.due_ms or 0)]
    assert days[0] != days[1]
    rows = store.sql.execute(
        "select extract(epoch from starts) * 1000, used from budget_use where budget like '%queue%'"
    )
    assert {int(starts): number for starts, number in rows} == {days[0].starts: 0, days[1].starts: 1}
    assert len(usable) == 40


def test_all_budgets_must_have_room_and_count_what_they_are_to_count(store: AuditStore) -> None:
    both = policy(
        DAILY | {"unit": "cost", "limit": 7},
        {"per": "queue", "limit": 3, "every": "1h", "over": "defer"},
        cost=3,
    )
    assert hours_of(ask(store, both, [charge("a"), charge("a"), charge("a"), charge("b"), charge("b")])) == [
        0,
        0,
        1,
        0,
        1,
    ]
    assert hours_of(ask(store, both, [charge(None), charge(None, queue="other")])) == [1, 0]
    counted = used(store)
    assert counted["p/owner/1h/cost/UTC", "a", 0] == 6
    assert counted["p/queue/1h/retries/UTC", "q", 0] == 3
    assert counted["p/queue/1h/retries/UTC", "q", 1] == 3


@pytest.mark.parametrize("over", ["review", "skip"])
def test_over_says_what_becomes_of_those_without_room(store: AuditStore, over: str) -> None:
    answers = ask(store, policy(DAILY | {"over": over}), [charge() for _ in range(4)])
    assert Counter(one.outcome.value for one in answers) == {"charged": 3, over: 1}
    (refused,) = [one for one in answers if one.outcome is not ChargeOutcome.CHARGED]
    assert (refused.due_ms, refused.full, refused.most) == (None, "p/owner/1h/retries/UTC", 3)


def test_what_is_too_late_or_beyond_is_not_charged(store: AuditStore) -> None:
    plain = policy(DAILY | {"limit": 1})
    assert hours_of(ask(store, plain, [charge()], 2)) == [0]
    assert ask(store, plain, [charge(latest=START + HOUR - 1)], 2)[0].outcome is ChargeOutcome.LATE
    assert hours_of(ask(store, plain, [charge(latest=START + HOUR)], 2)) == [1]
    waiting = charge()
    assert ask(store, plain, [waiting], 2, is_all=False)[0].outcome is ChargeOutcome.MORE
    assert hours_of(ask(store, plain, [waiting], 3)) == [2]
    assert ask(store, plain, [charge()], 3)[0].outcome is ChargeOutcome.BEYOND
    assert sum(used(store).values()) == 3


def test_the_spread_is_part_of_the_answer(store: AuditStore) -> None:
    wide = policy(DAILY | {"limit": 1, "spread": "10m"})
    half = charge(draw=500_000)
    ask(store, wide, [charge()])
    assert ask(store, wide, [half])[0].due_ms == START + HOUR + 300_000
    assert ask(store, wide, [half._replace(draw=1)])[0].due_ms == START + HOUR + 300_000


def test_what_is_deferred_is_due_while_all_windows_are_open(store: AuditStore) -> None:
    times = {"only": "mon-fri 08:00-20:00", "never": "08:00-08:30", "zone": "Europe/Zagreb", "spread": "30m"}
    office = policy(DAILY | {"limit": 1, "every": "1d", "zone": "Europe/Zagreb", "spread": "20h"}, window=times)
    opens = next_open(office.windows, START) or 0
    usable = list(slots(office.budgets, office.windows, opens, opens + 30 * 24 * HOUR, 125))
    asked = [charge(draw=draw)._replace(due_ms=opens) for draw in (0, 0, 1, 500_000, 999_999, 999_999)]
    found = store.do(store.one.charge(office, asked, usable, is_all=True))
    dues = sorted(one.due_ms for one in found)
    assert len({office.budgets[0].period(due) for due in dues}) == 6
    assert all(all_open(office.windows, due) for due in dues)
    assert dues[1:] != [slot.opens_ms for slot in usable[1:6]]


def test_an_owners_exception_takes_the_place_of_the_limit(store: AuditStore) -> None:
    plain = policy({"per": "owner", "limit": 2, "every": "1h"}, {"per": "policy", "limit": 50, "every": "1d"})
    store.sql.execute("insert into owner_limit (owner, hourly, actor) values ('big', 5, 'ann'), ('none', 0, 'ann')")
    store.sql.execute("insert into owner_limit (owner, policy, hourly, actor) values ('big', 'p', 4, 'ann')")
    store.sql.execute("insert into owner_limit (owner, policy, daily, actor) values ('small', 'p', 1, 'ann')")
    assert hours_of(ask(store, plain, [charge("big") for _ in range(5)])).count(0) == 4
    assert hours_of(ask(store, plain, [charge("small") for _ in range(3)])).count(0) == 2
    refused = ask(store, plain, [charge("none")])[0]
    assert (refused.outcome, refused.most) == (ChargeOutcome.BEYOND, 0)


def test_a_charge_waits_for_the_disk_also_where_commits_usually_do_not(store: AuditStore) -> None:
    store.sql.execute(
        "create table at_commit (setting text);"
        "create function at_commit() returns trigger language plpgsql as $$ begin"
        " insert into at_commit values (current_setting('synchronous_commit')); return new; end $$;"
        "create constraint trigger at_commit after insert on budget_charge deferrable initially deferred"
        " for each row execute function at_commit()"
    )
    store.sql.execute(f"alter database {store.sql.info.dbname} set synchronous_commit = off")
    own = Store(store.dsn, "own")
    store.do(own.open())
    store.do(own.charge(policy(), [charge()], hours(policy(), 1), is_all=True))
    store.do(own.close())
    assert store.sql.execute("select setting from at_commit").fetchall() == [("on",)]


OWNERS = [f"o-{number}" for number in range(5)]


def test_charges_of_many_connections_are_exact_and_do_not_deadlock(store: AuditStore) -> None:
    """Each connection asks for its own retries, some of which another one also asks for, in its own order."""
    plain = policy(
        {"per": "owner", "limit": 7, "every": "1h"},
        {"per": "queue", "limit": 11, "every": "1h"},
        {"per": "policy", "limit": 400, "every": "1d"},
    )
    chance = random.Random(7)
    everything = [charge(chance.choice(OWNERS), queue=chance.choice("xyz")) for _ in range(240)]
    twice = everything + chance.sample(everything, 60)
    chance.shuffle(twice)
    batches = [twice[start : start + 20] for start in range(0, len(twice), 20)]
    answers: dict[str, set[Charged]] = {}
    usable = hours(plain, 20)

    async def router(number: int) -> None:
        own = Store(store.dsn, f"router {number}")
        await own.open()
        for batch in batches[number::4]:
            for one in await own.charge(plain, batch, usable, is_all=True):
                answers.setdefault(one.retry_id, set()).add(one)
        await own.close()

    async def all_of_them() -> None:
        await asyncio.gather(*map(router, range(4)))

    store.do(all_of_them())
    assert {len(found) for found in answers.values()} == {1}
    final = {retry: found.pop() for retry, found in answers.items()}
    assert {one.outcome for one in final.values()} == {ChargeOutcome.CHARGED}
    counted: Counter[tuple[str, str | None, int | None]] = Counter()
    for one in everything:
        (hour,) = hours_of([final[one.retry_id]])
        counted["owner", one.owner, hour] += 1
        counted["queue", one.queue, hour] += 1
    stored = {(b.split("/")[1], s, h): n for (b, s, h), n in used(store).items() if "policy" not in b}
    assert counted == stored
    assert max(number for (kind, _, _), number in counted.items() if kind == "owner") <= 7
    assert max(number for (kind, _, _), number in counted.items() if kind == "queue") <= 11
    deadlocks = store.sql.execute("select deadlocks from pg_stat_database where datname = current_database()")
    assert deadlocks.fetchone() == (0,)


def test_an_hour_is_used_up_before_a_later_one_is_charged(store: AuditStore) -> None:
    """None is denied wrongly: with one budget all hours but the last are full."""
    plain = policy()
    usable, asked = hours(plain, 40), [charge(owner) for owner in OWNERS[:2] for _ in range(50)]
    random.Random(3).shuffle(asked)

    async def run() -> None:
        other = asked[1::2]
        await asyncio.gather(
            *(store.one.charge(plain, asked[0::2][at : at + 10], usable, is_all=True) for at in range(0, 50, 10)),
            *(store.other.charge(plain, other[at : at + 10], usable, is_all=True) for at in range(0, 50, 10)),
        )

    store.do(run())
    for owner in OWNERS[:2]:
        by_hour = [number for (_, subject, _), number in sorted(used(store).items()) if subject == owner]
        assert by_hour == [3] * 16 + [2]


def test_old_counters_and_answers_are_deleted(store: AuditStore) -> None:
    plain = policy()
    past = now_ms() // HOUR * HOUR - 40 * 24 * HOUR
    old = [Charge(id_of(name), 1, "acme", "q", 1, past + 1, NEVER, 0, past) for name in ("old", "open")]
    store.claim(request("open"))
    store.do(store.one.charge(plain, old, hours(plain, 2, past), is_all=True))
    store.sql.execute("update budget_charge set charged_at = charged_at - interval '40 days'")
    ask(store, plain, [charge("other")])
    found = in_session(store.dsn, lambda session: prune(session, timedelta(days=30)))
    assert found.charges == 2
    left = store.sql.execute("select count(*) from budget_charge where retry_id = %s", [id_of("open")]).fetchone()
    assert left == (1,)
    assert store.sql.execute("select subject from budget_subject").fetchall() == [("other",)]
    assert list(used(store).values()) == [1]

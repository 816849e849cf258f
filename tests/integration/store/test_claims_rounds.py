from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tarry.core.states import State
from tarry.store import claims as claims_module
from tarry.store.claims import Store
from tarry.store.rows import Claim, Granted, Record
from tests.support.audit_store import QUEUE, AuditStore, id_of, identity_of, now_ms, request
from tests.support.waiting import wait_for

M = id_of("m")


def test_the_first_request_is_granted_and_the_same_again_is_not(store: AuditStore) -> None:
    granted = store.claim(request("m"))
    assert (granted[M].round, granted[M].retry_count) == (1, 0)
    store.schedule(M, 1)
    assert store.claim(request("m"), by=store.other) == {}
    assert store.claim(request("m", redelivered=True)) == {}, "it waits: this is the same request delivered again"
    assert store.history(M) == [("claimed", 1), ("scheduled", 1)]


def test_headers_that_name_the_failed_round_decide_whatever_the_clock_says(store: AuditStore) -> None:
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=60_000)
    assert store.claim(request("m", round_=0)) == {}, "round 1 is scheduled: somebody asks for it again"
    granted = store.claim(request("m", round_=1, count=1))
    assert (granted[M].round, granted[M].retry_count) == (2, 1), "round 1 failed, so it did return, seen or not"
    store.schedule(M, 2, due_in_ms=60_000)
    assert store.claim(request("m", round_=1, count=1)) == {}


def test_without_headers_a_waiting_retry_is_a_duplicate_a_due_one_a_round(
    store: AuditStore,
) -> None:
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=60_000)
    assert store.claim(request("m")) == {}
    store.age(M, 61)
    granted = store.claim(request("m"))
    assert (granted[M].round, granted[M].retry_count) == (2, 1), "the audit knows the count that the request lost"


def test_a_consumer_that_strips_headers_is_counted_all_the_same(store: AuditStore) -> None:
    counts = []
    for round_ in (1, 2, 3, 4):
        granted = store.claim(request("m"))[M]
        counts.append((granted.round, granted.retry_count))
        store.schedule(M, round_, due_in_ms=-10, count=round_)
        store.see(M, round_)
    assert counts == [(1, 0), (2, 1), (3, 2), (4, 3)]


def test_headers_that_lost_only_the_count_do_not_win_it_back(store: AuditStore) -> None:
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=-10, count=3)
    assert store.claim(request("m", round_=1, count=0))[M].retry_count == 3


def test_an_unconfirmed_claim_is_taken_over_when_its_request_comes_again(store: AuditStore) -> None:
    store.claim(request("m"))
    store.age(M, 3)
    taken = store.claim(request("m", redelivered=True), by=store.other)
    assert taken[M].round == 1
    assert store.history(M) == [("claimed", 1), ("claimed", 1)]


def test_a_router_takes_up_its_own_claim_at_once(store: AuditStore) -> None:
    store.claim(request("m"))
    assert store.claim(request("m", redelivered=True))[M].round == 1


@pytest.mark.parametrize("redelivered", [False, True])
def test_a_second_request_waits_for_the_router_that_moves_the_first(store: AuditStore, *, redelivered: bool) -> None:
    store.claim(request("m"))
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(Elsewhere(store.dsn).claim, request("m", redelivered=redelivered))
        assert not asked.done()
        store.schedule(M, 1)
        assert asked.result(10) == {}, "the first was confirmed meanwhile, so this is a duplicate"


def test_a_late_claim_does_not_make_its_own_request_a_duplicate(
    store: AuditStore,
) -> None:
    """A router claims round 2 for a first request that was done long ago, and has no connection to publish by: the
    message then fails in earnest, and its request must not be dropped for that claim.
    """
    store.claim(request("m"), by=store.other)
    store.schedule(M, 1, due_in_ms=0)
    store.see(M, 1)
    assert store.claim(request("m"))[M].round == 2
    store.age(M, 10)
    (granted,) = store.claim(request("m", round_=1, count=1), by=store.other).values()
    assert granted.retry_count == 1


def test_a_takeover_of_a_later_round_keeps_round_and_count(store: AuditStore) -> None:
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=-10)
    store.claim(request("m", round_=1, count=1))
    assert store.claim(request("m", round_=1, count=1, redelivered=True))[M] == Granted(M, 2, 1, _since(store))
    lost_headers = request("m", redelivered=True)
    assert store.claim(lost_headers)[M] == Granted(M, 2, 1, _since(store))


def test_two_equal_messages_without_an_id_are_two_messages(store: AuditStore) -> None:
    one, other = request(None), request(None)
    assert set(store.claim(one, other)) == {one.retry_id, other.retry_id}


def test_a_claim_for_a_message_sent_again_after_its_end_is_a_new_retry(store: AuditStore) -> None:
    ends = {"done": "succeeded", "gone": "cancelled", "thrown": "discarded", "stuck": "in_review", "away": "skipped"}
    for message, end in ends.items():
        retry = id_of(message)
        store.claim(request(message))
        store.schedule(retry, 1, due_in_ms=-10, count=3)
        store.sql.execute("update retry set state = %s where id = %s", [end, retry])
        (granted,) = store.claim(request(message)).values()
        assert granted.retry_id != retry
        assert (granted.round, granted.retry_count) == (1, 0), f"after {end}"
        assert store.state(retry) == (end, 1, 3), "the older one stays as it is"


@pytest.mark.parametrize("again", [{"redelivered": True}, {"death": "orders:1:5"}], ids=["published", "dead-lettered"])
def test_a_claim_for_a_reviewed_request_delivered_again_goes_on_counting(
    store: AuditStore, again: dict[str, Any]
) -> None:
    death = again.get("death")
    retry = id_of("m", death=death)
    store.claim(request("m", death=death))
    store.review(retry, 1, count=3)
    (granted,) = store.claim(request("m", **again)).values()
    assert granted.retry_id != retry, "what is in review stays there"
    assert (granted.round, granted.retry_count) == (1, 3), "it ends in review too, and is not retried from the start"


def test_what_a_person_sent_back_from_review_keeps_the_count_it_was_given(store: AuditStore) -> None:
    store.claim(request("m"))
    store.review(M, 1, count=3)
    assert store.claim(request("m", round_=1, count=0))[M].retry_count == 0


@pytest.mark.parametrize("redelivered", [False, True])
def test_a_claim_lost_to_another_router_at_once_is_judged_by_the_rules(store: AuditStore, *, redelivered: bool) -> None:
    """The other router's row is not committed yet: without a second look a redelivered request would be dropped."""
    with psycopg.connect(store.dsn) as rival, ThreadPoolExecutor(1) as beside:
        rival.execute(
            "insert into retry (id, queue, state, round, claimed_at, claimed_by, identity)"
            " values (%s, 'orders', 'claimed', 1, clock_timestamp(), 'rival', %s)",
            [M, identity_of("m")],
        )
        asked = beside.submit(Elsewhere(store.dsn).claim, request("m", redelivered=redelivered))
        with psycopg.connect(store.dsn, autocommit=True) as watching:
            wait_for(lambda: _waits_for_a_lock(watching), what="the claim to wait for the rival's")
            rival.commit()
            if not redelivered:
                watching.execute("update retry set state = 'scheduled', due_at = 'infinity' where id = %s", [M])
        assert (M in asked.result(10)) is redelivered


class Elsewhere(AuditStore):
    """Another router, on a thread of its own."""

    def claim(self, *claims: Claim, by: Store | None = None) -> dict[str, Granted]:
        try:
            return super().claim(*claims, by=by or self.other)
        finally:
            self.close()


@pytest.mark.parametrize("again", [{"redelivered": True}, {"death": "orders:1:5"}], ids=["published", "dead-lettered"])
def test_a_claim_never_grants_two_free_rounds_in_a_row(store: AuditStore, again: dict[str, Any]) -> None:
    """A router may have died after its record and before its acknowledgement: that round spends no attempt. The next
    one does, or a message would be retried for ever.
    """
    death = again.get("death")
    retry = id_of("m", death=death)
    store.claim(request("m", death=death))
    counts, count = [], 0
    for round_ in (1, 2, 3, 4):
        store.schedule(retry, round_, due_in_ms=0, count=count + 1)
        store.see(retry, round_)
        granted = store.claim(request("m", **again))[retry]
        assert granted.round == round_ + 1
        count = granted.retry_count
        counts.append(count)
    assert counts == [0, 1, 1, 2]


def test_a_claim_for_another_death_is_a_failure_and_spends_an_attempt(store: AuditStore) -> None:
    """From RabbitMQ 4 a dead-lettered request always has the redelivered flag: only its x-death tells."""
    retry = id_of("m", death="orders:1:5")
    counts = []
    for round_ in (1, 2, 3, 4):
        counts.append(store.claim(request("m", death=f"orders:1:{round_ + 4}"))[retry].retry_count)
        store.schedule(retry, round_, due_in_ms=0, count=round_)
        store.see(retry, round_)
    assert counts == [0, 1, 2, 3]


def test_a_claim_for_another_death_while_one_waits_is_another_message(store: AuditStore) -> None:
    one, other = request("m", death="orders:1:5"), request("m", death="orders:1:6")
    store.claim(one)
    store.schedule(one.retry_id, 1)
    assert set(store.claim(other)) == {other.retry_id}
    assert store.claim(one) == {}, "the same death is the same request"
    store.schedule(other.retry_id, 1)
    assert store.claim(other) == {}
    by_id = other._replace(by_content=False, death="orders:1:7", retry_id=id_of("m", death="orders:1:7"))
    assert store.claim(by_id) == {}, "unless the policy goes by the message id alone"


def test_a_claim_for_the_first_request_is_known_in_a_later_round(store: AuditStore) -> None:
    first = request("m", death="orders:1:5")
    store.claim(first)
    store.schedule(first.retry_id, 1, due_in_ms=0)
    store.see(first.retry_id, 1)
    store.claim(request("m", round_=1, count=1, retry=first.retry_id, death="orders:1:8"))
    store.schedule(first.retry_id, 2)
    assert store.claim(first) == {}


def test_a_claim_for_another_body_with_the_same_id_is_another_message(store: AuditStore) -> None:
    for body in "abc":
        store.claim(request("m", body=body))
        store.schedule(id_of("m", body), 1)
    assert [store.state(id_of("m", body))[0] for body in "abc"] == ["scheduled"] * 3


def test_a_claim_with_lost_headers_counts_on_and_is_never_a_duplicate(store: AuditStore) -> None:
    """Queue, id and body agree: enough to go on counting, not enough to drop anything."""
    retry = id_of("m", headers="kept")
    store.claim(request("m", headers="kept"))
    store.schedule(retry, 1, count=1)
    (other,) = store.claim(request("m")).values()
    assert other.retry_id != retry, "the first waits, so this is another message"
    store.age(retry, 61)
    store.sql.execute("delete from retry where id = %s", [other.retry_id])
    granted = store.claim(request("m"))[retry]
    assert (granted.round, granted.retry_count) == (2, 1)


def test_a_claim_with_copied_headers_and_another_body_is_another_message(store: AuditStore) -> None:
    """An application that copies tarry's headers to a new message must not have it dropped for the old one."""
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=0)
    store.see(M, 1)
    store.claim(request("m", round_=1, count=1))
    store.schedule(M, 2)
    copied = request("m", round_=1, count=1, body="new", retry=M)
    (granted,) = store.claim(copied).values()
    assert granted.retry_id != M
    assert (granted.round, granted.retry_count) == (2, 1), "it goes on counting, or it could be retried for ever"
    assert store.claim(copied)[granted.retry_id].round == 2, "taken up again after a crash"
    store.schedule(granted.retry_id, 2)
    assert store.claim(copied) == {}, "and this is the same again"


def test_a_claim_that_was_guessed_does_not_cost_the_message_it_was_for(store: AuditStore) -> None:
    """Two equal messages: the second fails for the first time while the first is being worked on."""
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=0)
    store.see(M, 1)
    assert store.claim(request("m"))[M].round == 2, "it cannot be told from a new failure of the first"
    store.schedule(M, 2)
    store.schedule(M, 2, due_in_ms=0)
    store.see(M, 2)
    store.claim(request("m", round_=2, count=2))
    store.schedule(M, 3)
    (granted,) = store.claim(request("m", round_=1, count=1)).values()
    assert granted.retry_id != M, "the first fails in earnest, and is not dropped, also when the second went on"


def test_a_claim_of_a_half_equal_message_does_not_cost_the_other(store: AuditStore) -> None:
    """Queue, id and body agree, headers do not; their consumer loses tarry's headers, and the second takes the row."""
    first, second = request("m", headers="a"), request("m", headers="b")
    store.claim(first)
    store.schedule(first.retry_id, 1, due_in_ms=0)
    store.see(first.retry_id, 1)
    assert store.claim(second)[first.retry_id].round == 2
    store.schedule(first.retry_id, 2)
    assert store.claim(first), "its own id does not make it a duplicate of what it is not"


def test_a_claim_of_a_retry_that_began_when_postgres_was_away_is_apart(store: AuditStore) -> None:
    """Its id was in use before, by the same message on an earlier day; its first round was granted from memory."""
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=0)
    store.see(M, 1)
    store.claim(request("m", round_=1, count=1))
    store.schedule(M, 2, due_in_ms=0)
    store.sql.execute("update retry set state = 'succeeded', first_failed_at = first_failed_at - interval '1 day'")
    (granted,) = store.claim(request("m", round_=1, count=1)._replace(since_ms=now_ms())).values()
    assert granted.retry_id != M


def test_a_claim_when_by_another_clock_it_may_be_back_is_a_new_round(store: AuditStore) -> None:
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=900)
    assert store.claim(request("m", redelivered=True)) == {}, "the same request again is no new failure"
    assert store.claim(request("m"))[M].round == 2


def test_a_claim_that_is_published_does_not_drop_an_equal_dead_letter(store: AuditStore) -> None:
    store.claim(request("m"))
    store.schedule(M, 1)
    dead = request("m", death="orders:1:5")
    assert set(store.claim(dead)) == {dead.retry_id}


def test_two_claims_of_one_batch_for_one_row_are_both_granted(store: AuditStore) -> None:
    """One names the retry, though its body has changed; the other is recognised as that retry."""
    for number in range(20):
        message = f"m{number}"
        retry = id_of(message)
        store.claim(request(message))
        store.schedule(retry, 1, due_in_ms=0)
        store.see(retry, 1)
        named = request(message, round_=1, count=1, body="changed", retry=retry)
        bare = request(message)._replace(retry_id=str(uuid.uuid4()))
        fillers = [request(f"f{number}-{filler}") for filler in range(number)]
        answer = store.do(store.one.claim([named, bare, *fillers]))
        assert {named.retry_id, bare.retry_id} <= set(answer.granted)
        rounds = {(one.retry_id, one.round) for one in answer.granted.values()}
        assert len(rounds) == len(answer.granted), "no round is granted twice"


def test_a_claim_that_its_router_repeats_does_not_delay_others(store: AuditStore) -> None:
    store.claim(request("m"))
    store.age(M, 9)
    store.claim(request("m"))
    assert store.claim(request("m"), by=store.other)[M].round == 1, "ten seconds after the first claim"


def test_a_claim_that_is_never_decided_is_in_no_answer(store: AuditStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "_LONGEST_WAIT_MS", 300)
    store.claim(request("m"))
    answer = store.do(store.other.claim([request("m"), request("n")]))
    assert (set(answer.granted), answer.duplicate_of) == ({id_of("n")}, {})


def test_a_late_claim_is_given_back_and_the_store_is_as_before(store: AuditStore) -> None:
    """A router stops after it has read the first request; another handles it, and the message makes two rounds."""
    store.claim(request("m"), by=store.other)
    store.schedule(M, 1, due_in_ms=0)
    store.see(M, 1)
    store.claim(request("m", round_=1, count=1), by=store.other)
    store.schedule(M, 2, due_in_ms=0, count=2)
    store.see(M, 2)
    before, balance = store.state(M), store.balance()
    assert store.claim(request("m"))[M].round == 3, "without headers it cannot be told from a new failure"
    assert store.balance().claimed == 1
    store.do(store.one.release([(M, 3)]))
    assert store.state(M) == before == ("returned", 2, 2)
    after = store.balance()
    assert (after.rounds, after.returned, after.claimed) == (balance.rounds, 2, 0)
    assert (after.duplicates, after.requests) == (1, after.accounted)
    assert store.claim(request("m", round_=2, count=2), by=store.other)[M].round == 3, "a true failure goes on"


def test_what_is_in_review_is_so_again_when_a_late_claim_is_given_back(store: AuditStore) -> None:
    store.claim(request("m"), by=store.other)
    store.review(M, 1)
    store.claim(request("m", round_=1))
    store.do(store.one.release([(M, 2)]))
    assert store.state(M)[:2] == ("in_review", 1)
    assert store.balance().in_review == 1


def test_a_claim_that_another_router_took_over_is_not_given_back(store: AuditStore) -> None:
    store.claim(request("m"))
    store.schedule(M, 1, due_in_ms=0)
    store.claim(request("m", round_=1))
    store.age(M, 10)
    assert store.claim(request("m", round_=1, redelivered=True), by=store.other)
    store.do(store.one.release([(M, 2)]))
    assert store.state(M)[:2] == ("claimed", 2)


def test_a_first_claim_given_back_is_forgotten_until_its_request_comes(store: AuditStore) -> None:
    store.claim(request("m"))
    store.do(store.one.release([(M, 1)]))
    assert store.sql.execute("select count(*) from retry").fetchone() == (0,)
    assert store.balance().requests == store.balance().accounted
    assert store.claim(request("m", redelivered=True))[M].round == 1


def _waits_for_a_lock(connection: psycopg.Connection) -> bool:
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    row = connection.execute(waiting).fetchone()
    return row is not None and row[0] > 0


def _since(store: AuditStore) -> int:
    row = store.sql.execute("select (extract(epoch from first_failed_at) * 1000)::bigint from retry").fetchone()
    assert row is not None
    return int(row[0])


def test_a_late_record_names_the_message_of_a_retry_that_only_its_return_has_told_of(store: AuditStore) -> None:
    """Postgres was away when its first round was claimed and recorded, and the record waited in the spool."""
    scheduled = Record(
        M, 1, State.SCHEDULED, QUEUE, message_id="m", owner="acme", due_ms=now_ms(), delay_ms=500, retry_count=1
    )
    store.see(M, 1)
    store.claim(request("m", round_=1, count=1), by=store.other)
    store.do(store.one.record_late([scheduled, scheduled._replace(retry_id=id_of("n"), message_id="n")]))

    found = store.sql.execute("select message_id, owner, round, state from retry order by message_id").fetchall()
    assert found == [("m", "acme", 2, "claimed"), ("n", "acme", 1, "scheduled")]
    assert store.history(M) == [("returned", 1), ("claimed", 2), ("scheduled", 1)]

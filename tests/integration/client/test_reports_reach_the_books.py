"""What consumers report is written once, whenever it comes, and never over something that is known better."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tarry.audit.tap import Tap
from tarry.contract.outcome import Outcome, write_report
from tarry.contract.properties import Properties
from tarry.contract.request import Delivery
from tarry.core.names import Names
from tests.harness.spaces import Database
from tests.integration.audit.books import Books, id_of, now_ms, request

NAMES = Names()
M, N = id_of("m"), id_of("n")


@pytest.fixture
def books(database: Database) -> Iterator[Books]:
    made = Books(database.dsn)
    made.claim(request("m"))
    made.schedule(M, 1, due_in_ms=-10)
    yield made
    made.close()


def report(*outcomes: Outcome) -> Delivery:
    return told(write_report(outcomes))


def told(body: bytes) -> Delivery:
    return Delivery(body, Properties(), NAMES.reports, "", redelivered=False, tag=1)


def outcome(round_: int = 1, retry: str = M, duration_ms: int = 12) -> Outcome:
    return Outcome(retry, round_, round_, now_ms(), duration_ms)


def tap(books: Books, *deliveries: Delivery) -> None:
    assert books.do(Tap(books.one, NAMES).handle(deliveries, lambda _: now_ms())) == []


def test_a_success_is_written_once_with_its_attempt_and_duration(books: Books) -> None:
    books.see(M, 1)
    tap(books, report(outcome(), outcome()), report(outcome()))
    tap(books, report(outcome(duration_ms=99)))
    assert books.state(M)[:2] == ("succeeded", 1)
    assert [state for state, _ in books.history(M)] == ["claimed", "scheduled", "returned", "succeeded"]
    row = books.sql.execute("select actor, detail - 'at_ms' from transition where state = 'succeeded'").fetchone()
    assert row == ("reported", {"attempt": 1, "duration_ms": 12})
    assert books.balance().lost == 0


def test_it_may_come_before_the_return_was_seen(books: Books) -> None:
    tap(books, report(outcome()))
    assert books.state(M)[0] == "succeeded"
    books.see(M, 1)
    assert books.state(M)[0] == "succeeded"
    assert (books.balance().returned, books.balance().lost) == (1, 0)


def test_before_the_router_has_written_that_it_sent_it_a_report_says_nothing(books: Books) -> None:
    """A success that nothing led up to could hide a loss. It is presumed in time, as if nobody had reported it."""
    books.claim(request("n"))
    tap(books, report(outcome(retry=N)))
    assert books.state(N)[0] == "claimed"
    books.schedule(N, 1, due_in_ms=-10)
    books.see(N, 1)
    assert books.state(N)[0] == "returned"


def test_a_later_round_stands_above_it(books: Books) -> None:
    """It succeeded, its acknowledgement was lost, and the second time it failed."""
    books.see(M, 1)
    books.claim(request("m", round_=1, count=1))
    tap(books, report(outcome(1)))
    assert books.state(M)[:2] == ("claimed", 2)
    assert ("succeeded", 1) in books.history(M)
    books.schedule(M, 2)
    tap(books, report(outcome(2), outcome(1)))
    assert books.state(M)[:2] == ("succeeded", 2)
    assert [state for state, _ in books.history(M)].count("succeeded") == 2


def test_what_is_over_by_another_way_stays_as_it_is(books: Books) -> None:
    books.review(M, 1)
    tap(books, report(outcome()))
    assert books.state(M)[0] == "in_review"
    assert ("succeeded", 1) not in books.history(M)


def test_what_was_presumed_is_proven(books: Books) -> None:
    books.see(M, 1)
    books.sql.execute("update retry set state = 'succeeded'")
    books.sql.execute(
        "insert into transition (retry_id, round, state, actor) values (%s, 1, 'succeeded', 'presumed')", [M]
    )
    for _ in range(2):
        tap(books, report(outcome()))
    found = books.sql.execute("select actor from transition where state = 'succeeded' order by id").fetchall()
    assert found == [("presumed",), ("reported",)]


def test_strangers_and_nonsense_are_passed_over(books: Books) -> None:
    nonsense = [b"", b"[]", b'{"outcomes": 7}', b'{"outcomes": [{"id": "x"}]}', b'{"outcomes": [3]}']
    future = b'{"outcomes": [{"outcome": "postponed", "id": "later"}]}'
    books.see(M, 1)
    tap(books, report(outcome(retry=N)), told(future), *map(told, nonsense), report(outcome()))
    assert books.state(M)[0] == "succeeded"
    assert books.sql.execute("select count(*) from retry").fetchone() == (1,)

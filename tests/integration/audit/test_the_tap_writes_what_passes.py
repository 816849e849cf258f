from __future__ import annotations

import json

from tarry.audit.records import Record
from tarry.audit.spool import spool_message
from tarry.audit.tap import CancelledTap, Tap
from tarry.contract.encoding import table
from tarry.contract.properties import Properties
from tarry.contract.request import Delivery
from tarry.core.names import Names
from tarry.core.states import State
from tests.integration.audit.books import QUEUE, Books, id_of, now_ms, request

NAMES = Names()
M = id_of("m")


def copy(
    round_: int = 1, *, late_ms: int = 5, redelivered: bool = False, changes: dict[str, str] | None = None
) -> Delivery:
    headers = {
        "tarry-id": M,
        "tarry-round": round_,
        "tarry-count": round_,
        "tarry-due-ms": now_ms() - late_ms,
        "tarry-queue": QUEUE,
        **(changes or {}),
    }
    return Delivery(b"body", Properties(headers=table(headers)), NAMES.arrive, "key", redelivered, 1)


def spooled(round_: int, state: State = State.SCHEDULED) -> Delivery:
    due = now_ms() - 10
    record = Record(
        M, round_, state, QUEUE, message_id="m", retry_count=round_, due_ms=due, delay_ms=500, body=b"\x00b"
    )
    message = spool_message(record, NAMES)
    return Delivery(message.body, message.properties, NAMES.spool, "", redelivered=False, tag=1)


def tap(books: Books, *deliveries: Delivery) -> list[str]:
    """What could not be written, and why."""
    left = books.do(Tap(books.one, NAMES).handle(deliveries, lambda _: now_ms()))
    return [reason for _, reason in left]


def test_a_return_is_written_once_however_often_it_is_delivered(books: Books) -> None:
    books.claim(request("m"))
    books.schedule(M, 1)
    assert tap(books, copy()) == []
    assert tap(books, copy(redelivered=True)) == []
    assert books.history(M) == [("claimed", 1), ("scheduled", 1), ("returned", 1)]
    assert books.state(M)[0] == "returned"


def test_a_message_that_passes_twice_is_written_down_as_a_duplicate(books: Books) -> None:
    books.claim(request("m"))
    books.schedule(M, 1)
    tap(books, copy(), copy())
    tap(books, copy())
    assert [state for state, _ in books.history(M)] == ["claimed", "scheduled", "returned", "duplicate", "duplicate"]
    assert (books.balance().returned, books.balance().twice, books.balance().duplicates) == (1, 2, 0)


def test_an_older_round_that_is_seen_later_is_no_duplicate(books: Books) -> None:
    """Two taps read side by side: what they hold comes out of order."""
    books.claim(request("m"))
    books.schedule(M, 1, due_in_ms=-10)
    books.claim(request("m", round_=1, count=1))
    books.schedule(M, 2, due_in_ms=-10)
    tap(books, copy(2))
    tap(books, copy(1))
    tap(books, copy(1))
    assert [state for state, _ in books.history(M)][4:] == ["returned", "returned", "duplicate"]
    assert books.state(M)[:2] == ("returned", 2)


def test_what_was_spooled_is_written_in_order_and_whole(books: Books) -> None:
    assert tap(books, spooled(1), copy(1), spooled(2), copy(2)) == []
    assert books.state(M) == ("returned", 2, 2)
    row = books.sql.execute("select body, message_id, fingerprint, returned_round from retry").fetchone()
    assert row == (b"\x00b", "m", None, 2)
    balance = books.balance()
    assert (balance.rounds, balance.returned, balance.lost) == (2, 2, 0)


def test_the_same_record_twice_in_a_batch_and_a_return_before_its_record_do_no_harm(books: Books) -> None:
    assert tap(books, copy(1)) == []
    assert tap(books, spooled(1), spooled(1), spooled(1)) == []
    assert books.state(M)[:2] == ("returned", 1)
    assert books.balance().lost == 0


def test_what_cannot_be_read_comes_back_with_the_reason_and_the_rest_is_written(books: Books) -> None:
    bad = Delivery(b"{}", Properties(), NAMES.spool, "", redelivered=False, tag=2)
    poison = spooled(1)
    fields = json.loads(poison.body) | {"retry_id": "nobody"}
    worse = Delivery(json.dumps(fields).encode(), Properties(), NAMES.spool, "", redelivered=False, tag=3)
    reasons = tap(books, bad, worse, spooled(1))
    assert len(reasons) == 2
    assert reasons[0].startswith("not a spooled record")
    assert reasons[1].startswith("Postgres refused")
    assert books.state(M)[0] == "scheduled"


def test_strangers_are_passed_over(books: Books) -> None:
    foreign = Delivery(b"", Properties(headers=table({"a": 1})), NAMES.arrive, "", redelivered=False, tag=1)
    assert tap(books, foreign, copy(changes={"tarry-id": "no uuid"}), copy(changes={"tarry-due-ms": "soon"})) == []
    assert books.balance().rounds == 0


def test_a_drift_past_any_number_is_only_a_large_one(books: Books) -> None:
    assert tap(books, copy(1, late_ms=now_ms() - 5)) == []
    assert books.sql.execute("select drift_ms from retry").fetchone() == (2_147_483_647,)


def test_a_diverted_message_is_cancelled_once(books: Books) -> None:
    books.claim(request("m"))
    books.schedule(M, 1)
    gate = CancelledTap(books.one, NAMES)
    for again in (copy(), copy(redelivered=True), copy()):
        assert books.do(gate.handle([again, again], lambda _: now_ms())) == []
    assert books.state(M)[0] == "cancelled"
    assert books.history(M) == [("claimed", 1), ("scheduled", 1), ("cancelled", 1)]
    assert books.balance().cancelled == 1


def test_a_copy_diverted_after_its_round_returned_changes_nothing_but_is_told(books: Books) -> None:
    books.claim(request("m"))
    books.schedule(M, 1)
    tap(books, copy())
    books.do(CancelledTap(books.one, NAMES).handle([copy()], lambda _: now_ms()))
    assert books.state(M)[0] == "returned"
    assert books.history(M)[-1] == ("duplicate", 1)

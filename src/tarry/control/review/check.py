"""The queue against the books: what is in one and not in the other. Looks at every message and takes none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tarry.broker.management import Management
from tarry.contract.request import Acceptance, Delivery
from tarry.control.desk import Desk
from tarry.control.review.card import Card, Key, key_of, read_card
from tarry.control.review.hand import Hand, Wanted
from tarry.control.review.jobs import acceptance
from tarry.control.review.unlisted import read_unlisted
from tarry.control.review.work import MOST_BYTES, the_hand
from tarry.errors import BrokerError, ConflictError
from tarry.router.threads import in_thread
from tarry.topology.partial import NamesOnly

SLICE = 5_000
FRESH = timedelta(seconds=5)
"""What went to review so lately may not have been in the queue yet when the look began."""

KINDS = {
    "no id": "without a tarry-id of its own: the broker or a person put it there",
    "not in the books": "not in the books: Postgres was away, and its record is not written yet, or it was pruned",
    "left over": "left over: a job has sent it on or thrown it away, and was cut off before it left the queue",
    "moved on": "in another state by the books",
}


@dataclass(frozen=True, slots=True)
class Stranger:
    """A message in the queue that the books do not have in review."""

    kind: str
    about: str
    key: Key | None
    message_id: str | None
    queue: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Checked:
    """What a look through the whole queue found."""

    seen: int
    in_books: int
    strangers: tuple[Stranger, ...]
    gone: tuple[Key, ...]
    """In review by the books, and not in the queue."""
    in_work: int
    """In the hands of a job."""
    elsewhere: int | None
    """In the hands of other consumers; None where the broker does not tell. They may come back."""

    @property
    def differs(self) -> bool:
        return bool(self.strangers or self.gone)


@dataclass(slots=True)
class _Seen:
    keys: set[Key] = field(default_factory=set)
    unknown: list[tuple[Key | None, Card]] = field(default_factory=list)
    count: int = 0


async def check(desk: Desk) -> Checked:
    """While it looks, other consumers find the queue empty: some seconds for a hundred thousand messages."""
    began: datetime = (await desk.books.rows("clock"))[0][0]
    held = await elsewhere(desk)
    books = await _keys_in_books(desk)
    seen = await _look(desk, books)
    work = {(row[0], row[1]) for row in await desk.books.rows("review_in_work")}
    strangers = await _strangers(desk, seen.unknown)
    missing = sorted((books - seen.keys) - work)
    gone = await _still_in_review(desk, missing, began)
    return Checked(seen.count, len(books), strangers, tuple(gone), len(work), held)


async def _keys_in_books(desk: Desk) -> set[Key]:
    found: set[Key] = set()
    after = "00000000-0000-0000-0000-000000000000"
    while rows := await desk.books.rows("review_all_keys", after=after, limit=SLICE):
        found.update((row[0], row[1]) for row in rows)
        after = rows[-1][0]
    return found


async def _look(desk: Desk, books: set[Key]) -> _Seen:
    """Of what the books know only the key is kept."""
    # To look needs only names: files with a mistake in them are no obstacle.
    accept = Acceptance(desk.names) if isinstance(desk.files, NamesOnly) else acceptance(desk)
    seen = _Seen()

    def note(delivery: Delivery) -> bool:
        key = key_of(delivery)
        seen.count += 1
        if key is not None and key in books:
            seen.keys.add(key)
        else:
            seen.unknown.append((key, _unlisted(delivery, accept) if key is None else read_card(delivery)))
        return False

    await look_through(desk, note)
    return seen


def _unlisted(delivery: Delivery, accept: Acceptance) -> Card:
    item = read_unlisted(delivery, accept)
    return Card(None, item.message_id, item.origin.queue, reason=item.reason)


async def look_through(desk: Desk, note: Wanted) -> None:
    """The whole queue, and nothing is kept."""
    async with (
        the_hand(desk, asyncio.Event()) as _,
        Hand.open(desk.address, desk.names.review_queue, note, most=1, most_bytes=MOST_BYTES) as hand,
    ):
        look = await hand.look()
        await hand.settled()
    if not look.whole:
        raise BrokerError(
            f"{desk.names.review_queue} could not be read to its end: it grows faster than it is read, or "
            f"{desk.address} does not deliver. Nothing was taken; try again in a moment."
        )


async def _strangers(desk: Desk, unknown: Sequence[tuple[Key | None, Card]]) -> tuple[Stranger, ...]:
    keys = [key for key, _ in unknown if key is not None]
    known: dict[str, tuple[int, str]] = {}
    left_over: set[Key] = set()
    for start in range(0, len(keys), SLICE):
        some = keys[start : start + SLICE]
        ids, rounds = [one[0] for one in some], [one[1] for one in some]
        known |= {row[0]: (row[1], row[2]) for row in await desk.books.rows("review_known", ids=ids)}
        left_over |= {(r[0], r[1]) for r in await desk.books.rows("review_left_over", ids=ids, rounds=rounds)}
    found = (_stranger(key, card, known, left_over) for key, card in unknown)
    return tuple(one for one in found if one is not None)


def _stranger(key: Key | None, card: Card, known: dict[str, tuple[int, str]], left_over: set[Key]) -> Stranger | None:
    """None if the books have it in review after all: it came while we looked."""
    if key is None:
        kind, about = "no id", KINDS["no id"]
    elif key[0] not in known:
        kind, about = "not in the books", KINDS["not in the books"]
    elif known[key[0]] == (key[1], "in_review"):
        return None
    elif key in left_over:
        kind, about = "left over", KINDS["left over"]
    else:
        round_, state = known[key[0]]
        kind, about = "moved on", f"by the books it is {state} in round {round_}; this is round {key[1]}"
    return Stranger(kind, about, key, card.message_id, card.queue, card.reason)


async def _still_in_review(desk: Desk, keys: Sequence[Key], began: datetime) -> list[Key]:
    """Without those that a person or a job has dealt with meanwhile, and those that are too new to judge."""
    found: list[Key] = []
    for start in range(0, len(keys), SLICE):
        ids = [one[0] for one in keys[start : start + SLICE]]
        rows = await desk.books.rows("review_settled_keys", ids=ids, before=began - FRESH)
        found += [(row[0], row[1]) for row in rows]
    return sorted(set(found) & set(keys))


async def elsewhere(desk: Desk) -> int | None:
    """What other consumers hold. The broker's numbers are up to five seconds old."""

    def ask() -> int:
        about = Management(desk.address, timeout=5).queue(desk.names.review_queue) or {}
        return int(about.get("messages_unacknowledged") or 0)

    try:
        return await in_thread(ask, "management")
    except BrokerError:
        return None


async def close_gone(desk: Desk, found: Checked, *, actor: str) -> int:
    """Throws away in the books what is not in the queue any more, if nobody can bring it back."""
    held = await _nobody_holds(desk)
    if held != 0:
        raise ConflictError(
            f"{'Nobody knows how many' if held is None else f'{held:,}'} messages of {desk.names.review_queue} are in "
            "other consumers' hands and may come back: stop those consumers, then close."
        )
    again = await check(desk)
    sure = sorted(set(found.gone) & set(again.gone))
    closed = 0
    for start in range(0, len(sure), SLICE):
        some = sure[start : start + SLICE]
        rows = await desk.books.rows(
            "review_close_gone",
            ids=[one[0] for one in some],
            rounds=[one[1] for one in some],
            actor=actor,
            why="taken from the review queue by another consumer",
        )
        closed += len(rows)
    return closed


async def _nobody_holds(desk: Desk, patience: int = 12) -> int | None:
    """The numbers may still tell of our own look."""
    held = await elsewhere(desk)
    for _ in range(patience):
        if not held:
            break
        await asyncio.sleep(1)
        held = await elsewhere(desk)
    return held

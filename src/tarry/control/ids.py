"""Ids that operators type: a beginning becomes the whole id before anything is done with it."""

from __future__ import annotations

from tarry.control.books import Books
from tarry.core.id_prefix import SHOWN, IdRange, fingerprint_range, only, uuid_range


async def whole_retry_id(books: Books, called: str) -> str:
    """The retry id that begins so; `called` itself if none does, or if a message has this very id."""
    return await _whole(books, "retries_beginning", called, uuid_range(called), called=called)


async def whole_job_id(books: Books, called: str) -> str:
    return await _whole(books, "jobs_beginning", called, uuid_range(called))


async def whole_fingerprint(books: Books, text: str | None) -> str | None:
    return None if text is None else await _whole(books, "fingerprints_beginning", text, fingerprint_range(text))


async def _whole(books: Books, name: str, text: str, bounds: IdRange | None, **more: str) -> str:
    if bounds is None:
        return text
    rows = await books.rows(name, low=bounds.low, high=bounds.high, limit=SHOWN + 1, **more)
    return only(text, [(row[0], row[1]) for row in rows]) or text

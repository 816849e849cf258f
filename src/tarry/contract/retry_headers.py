"""Parses tarry's own headers. They are on every message that tarry has sent, and anybody can forge them.

`read_retry_headers` never fails because of a value. A caller that must not go on with a wrong value names the headers
that it needs to `RetryHeaders.check`, or asks for `strict_id`; both raise RefusalError.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from tarry.amqp.field_tables import Field
from tarry.contract import headers as h
from tarry.contract.header_reader import FAR_FUTURE_MS, LONGEST_TEXT, VOID, RefusalError, integer_of, sane, text_of
from tarry.contract.identity import MOST_ROUNDS, is_canonical
from tarry.core.policy import HIGHEST_PRIORITY, MOST_RETRIES


class RetryHeaders(NamedTuple):
    """tarry's own headers on one message. A value is None if its header is absent or not well-formed.

    A number beyond its limit is in `wrong`, but is kept: review shows it.
    """

    id_text: str | None
    """The retry id as it was written, which may be any text."""
    round: int | None
    retry_count: int | None
    max_retries: int | None
    due_ms: int | None
    since_ms: int | None
    queue: str | None
    exchange: str | None
    routing_key: str | None
    via: str | None
    times_unroutable: int | None
    own_priority: str | None
    """As it was written; `priority_of` reads it."""
    retry_id: str | None
    """The retry id in its canonical form; None if the text is not a UUID."""
    contract: bool
    """Whether the request used the contract: its headers are for tarry to rewrite."""
    wrong: Mapping[str, str]
    """Headers that are not well-formed, each with the reason."""

    def check(self, *names: str) -> None:
        """Raises RefusalError for the first of these headers that is not well-formed. All may be absent."""
        if self.wrong:
            for name in names:
                if name in self.wrong:
                    raise RefusalError(self.wrong[name])

    def strict_id(self) -> str:
        """The retry id in its canonical form; raises RefusalError if there is none."""
        if self.retry_id is None:
            self.check(h.ID)
            raise not_an_id(self.id_text or "")
        return self.retry_id


NO_PRIORITY = "none"
_is_priority = re.compile(r"\d{1,3}", re.ASCII).fullmatch


def priority_text(priority: int | None) -> str:
    """The value of the header for a message with this priority of its own."""
    return NO_PRIORITY if priority is None else str(priority)


def priority_of(own: RetryHeaders | None, published: int | None) -> int | None:
    """The message's own priority, from the header if tarry has set it, otherwise from the property.

    A value that tarry does not write is ignored: it is no reason to send a message to review.
    """
    text = own.own_priority if own is not None else None
    if text == NO_PRIORITY:
        return None
    number = int(text) if text is not None and _is_priority(text) else None
    return number if number is not None and number <= HIGHEST_PRIORITY else published


def not_an_id(text: str) -> RefusalError:
    return RefusalError(f"the header `{h.ID}` is not a retry id: {text[:40]!r}")


_LIMITS: dict[str, int | None] = {
    h.ID: None,
    h.ROUND: MOST_ROUNDS,
    h.COUNT: MOST_ROUNDS,
    h.MOST: MOST_RETRIES,
    h.DUE: FAR_FUTURE_MS,
    h.SINCE: FAR_FUTURE_MS,
    h.QUEUE: None,
    h.EXCHANGE: None,
    h.KEY: None,
    h.VIA: None,
    h.TIMES_UNROUTABLE: MOST_ROUNDS,
    h.OWN_PRIORITY: None,
}
"""The headers in the order of the fields of `RetryHeaders`, with the limits of numbers; None for text."""

_HEADERS = {name.encode(): (place, name, most) for place, (name, most) in enumerate(_LIMITS.items())}
_ABSENT: list[Any] = [None] * len(_HEADERS)
_FORM = h.FORM.encode()


def read_retry_headers(fields: Mapping[bytes, Field], longest: int = LONGEST_TEXT) -> RetryHeaders:
    """Parses those of tarry's headers that are among the fields. Texts are cut to `longest` characters.

    It runs for every message, so a caller picks only the headers that it uses.
    """
    values, wrong = _ABSENT.copy(), dict[str, str]()
    for raw, field in fields.items():
        header = _HEADERS.get(raw)
        if header is None:
            continue
        place, name, most = header
        if most is None:
            text = field.text()
            if text is not None and len(text) <= longest:
                values[place] = text
                continue
        else:
            number = field.integer()
            if number is not None and 0 <= number <= most:
                values[place] = number
                continue
        if field.kind != VOID:
            values[place] = _unusual(name, field, most, longest, wrong)
    return RetryHeaders._make((*values, _canonical(values[0]), _FORM in fields, wrong))


def _canonical(text: str | None) -> str | None:
    if text is None or is_canonical(text):
        return text
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None


def _unusual(name: str, field: Field, most: int | None, longest: int, wrong: dict[str, str]) -> str | int | None:
    """The value of a header that is not as tarry writes it. Adds the reason to `wrong` if it is not well-formed."""
    try:
        if most is None:
            return text_of(name, field, longest)
        sane(name, integer_of(name, field), most)
    except RefusalError as refusal:
        wrong[name] = str(refusal)
    number = None if most is None else field.integer()
    return number if number is not None and number >= 0 else None

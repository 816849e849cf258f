"""Templates. Everything that a page shows passes `_visible`, so no text from outside can act on the page or hide."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from itertools import count
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tarry.core.durations import humanise
from tarry.core.printable import printable

LONGEST = 20_000
"""Characters of one value that a page shows."""

WHOLE = 32
"""The longest name that is not broken into lines on a wide screen."""


def make_environment() -> Environment:
    found = Environment(
        loader=PackageLoader("tarry.web.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    numbers = count()
    found.globals["unique"] = lambda: f"field-{next(numbers)}"
    found.filters |= {
        "ago": ago,
        "anchor": anchor,
        "exact": exact,
        "lines": lines,
        "number": lambda value: f"{value:,}",
        "query": query,
        "pretty": pretty,
        "span": humanise,
        "when": when,
        "whole": whole,
    }
    return found


def anchor(title: str) -> str:
    """Of a section of the runbook, as in the links of the documentation."""
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def _visible(value: Any) -> Any:
    """Text on one line with everything escaped that does not show as itself. HTML escaping follows."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) or not isinstance(value, str) else printable(_cut(value))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"


def lines(text: str) -> Markup:
    """With line ends and tabs as they are, for a block of preformatted text."""
    return escape(printable(_cut(text), lines=True))


def whole(name: str) -> Markup:
    """A name on one line, if it is short: of a queue, a policy, a person."""
    shown = printable(_cut(name))
    return Markup('<span class="whole">{}</span>').format(shown) if len(shown) <= WHOLE else escape(shown)


def exact(text: object) -> Markup:
    """For the value of a form field: what is sent back must be the same text, and is not shown."""
    return escape("" if text is None else text)


def when(moment: datetime | None) -> Markup:
    if moment is None:
        return Markup("–")
    at = moment.astimezone(UTC)
    iso, shown = at.isoformat(timespec="milliseconds"), f"{at:%Y-%m-%d %H:%M:%S}"
    return Markup('<time datetime="{}">{}</time>').format(iso, shown)


def ago(moment: datetime | None, now: datetime) -> str:
    """`3m ago`, or `in 3m`."""
    if moment is None:
        return "–"
    seconds = (moment - now).total_seconds()
    span = humanise(abs(round(seconds)) * 1000).replace("0ms", "0s")
    return f"in {span}" if seconds > 0 else f"{span} ago"


def query(values: dict[str, Any]) -> str:
    """The query of a URL; what is None is left out."""
    return urlencode({name: value for name, value in values.items() if value not in (None, "", [])}, doseq=True)


def pretty(value: Any) -> Markup:
    """JSON for people."""
    return lines(json.dumps(value, indent=2, ensure_ascii=False, default=str))

"""The generated page of events. `make check` proves that it is fresh."""

from __future__ import annotations

import re

from tarry.events.cloudevent import EventType
from tarry.events.reference import events_markdown
from tarry.events.schema import ActionData, RetryData


def test_events_reference_has_every_type_with_its_meaning() -> None:
    rows = re.findall(r"^\| `(tarry\.[\w.]+)` \| `(\w+)` \| (.+) \|$", events_markdown(), re.MULTILINE)
    assert [name for name, *_ in rows] == list(EventType)
    assert ("tarry.retry.held", "held") in [(name, word) for name, word, _ in rows]
    assert all(text.endswith(".") for *_, text in rows)


def test_events_reference_has_every_field_of_the_data() -> None:
    page = events_markdown()
    for model in (RetryData, ActionData):
        assert set(model.model_fields) <= set(re.findall(r"^\| `(\w+)` ", page, re.MULTILINE))

"""Generates docs/events-reference.md: the types of events and their fields, from the types and the JSON schema."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tarry.events.cloudevent import EventType
from tarry.events.schema import events_schema_text
from tarry.topology.reference import cell, key_table

_HEAD = """# Every event

This page is generated from the [JSON schema](events.schema.json) of events by `make generate`. What events promise, and
how to receive them, is in [Events](events.md). A field without a known value is left out; later versions may add types
and fields.
"""


def events_markdown() -> str:
    """The whole page."""
    schema: dict[str, Any] = json.loads(events_schema_text())
    models = schema["$defs"]
    parts = [_HEAD, "## Types\n", _types(), "## Attributes\n"]
    parts.append("On the broker `data` is the body, and each other attribute is a header named `cloudEvents:…`.\n")
    parts.append(_fields(_without_types(schema), models))
    for model, title in (("RetryData", "Data of events about a retry"), ("ActionData", "Data of other events")):
        parts += [f"## {title}\n", f"{models[model]['description']}\n", _fields(models[model], models)]
    return "\n".join(parts)


def _types() -> str:
    rows = [f"| `{one.value}` | `{one.word}` | {text} |" for one, text in zip(EventType, _meanings(), strict=True)]
    return "\n".join(["| type | in filters and webhooks | meaning |", "|---|---|---|", *rows]) + "\n"


def _meanings() -> Iterator[str]:
    """What stands below each type in its class; Python does not keep it."""
    (body,) = [node.body for node in ast.parse(inspect.getsource(EventType)).body if isinstance(node, ast.ClassDef)]
    for before, after in pairwise(body):
        match before, after:
            case ast.Assign(), ast.Expr(value=ast.Constant(value=str(text))):
                yield cell(text)


def _fields(model: dict[str, Any], models: dict[str, Any]) -> str:
    return key_table(model, models, column="present", required="always")


def _without_types(schema: dict[str, Any]) -> dict[str, Any]:
    """The types have a table of their own."""
    fields = dict(schema["properties"])
    fields["type"] = {"type": "string", "description": "One of the types above."}
    fields["data"] = {"description": "See below.", "properties": True}
    return {**schema, "properties": fields}

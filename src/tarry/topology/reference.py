"""Generates docs/topology-reference.md, every key of the topology files, from their JSON schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tarry.core.durations import PATTERN
from tarry.topology.schema import schema_text

Schema = dict[str, Any]
Linked = Callable[[str], str | None]
"""The link to the table of a model, if it has one."""

_HEAD = """# Every key of the topology files

This page is generated from the [JSON schema](../topology/schema.json) of the files by `make generate`. How policies
work is in [Policies](policies.md), the files and what they declare in [The topology](topology.md).

A *duration* is a number with a unit, or several: `"500ms"`, `"1h30m"`. A *share* is a percentage: `"30%"`. A *glob* is
a name in which `*` stands for anything.
"""
_SECTIONS = {
    "Policy": "policy",
    "Match": "match",
    "Backoff": "backoff",
    "ErrorRule": "errors",
    "Window": "window",
    "Budget": "budget",
    "Eligibility": "eligibility",
    "Breaker": "breaker",
    "Adaptive": "adaptive",
    "EventsSection": "events",
    "Webhook": "webhook",
    "NamesSection": "names",
    "LadderSection": "ladder",
}
"""The tables in the order of the page, and the key of each in the files."""

_ALSO = {"Base": "Policy"}
"""A base has the keys of a policy."""


def topology_markdown() -> str:
    """The whole page. The descriptions are in the models."""
    schema: Schema = json.loads(schema_text())
    tables = schema["$defs"]
    missing = {name for name, one in tables.items() if "properties" in one} - set(_SECTIONS) - set(_ALSO)
    if missing:
        raise ValueError(f"add to _SECTIONS in topology/reference.py: {', '.join(sorted(missing))}")
    parts = [_HEAD, "## At the top of tarry.toml\n", key_table(schema, tables, linked=_linked)]
    for name, key in _SECTIONS.items():
        parts += [f"## {key}\n", f"{tables[name]['description']}\n", key_table(tables[name], tables, linked=_linked)]
    return "\n".join(parts)


def _linked(name: str) -> str | None:
    key = _SECTIONS.get(_ALSO.get(name, name))
    return None if key is None else f"[{key}](#{key})"


def no_links(_name: str) -> str | None:
    """For pages whose tables are not linked to each other."""
    return None


def key_table(
    model: Schema, models: Schema, *, linked: Linked = no_links, column: str = "default", required: str = "required"
) -> str:
    """One row for each property: its type, its default or the word for one that must be there, and its description."""
    needed = set(model.get("required", ()))
    rows = [f"| key | type | {column} | meaning |", "|---|---|---|---|"]
    for key, field in model["properties"].items():
        default = required if key in needed else _default(field)
        meaning = cell(field.get("description") or model_of(field, models).get("description", ""))
        rows.append(f"| `{key}` | {kind_of(field, models, linked)} | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def model_of(field: Schema, models: Schema) -> Schema:
    """The schema that a field refers to, or else the field's own."""
    found = models.get(str(field.get("$ref", "")).rpartition("/")[2], field)
    return dict(found)


def kind_of(field: Schema, models: Schema, linked: Linked = no_links) -> str:
    """The type of a field in words."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return str(linked(name) or kind_of(models[name], models, linked))
    if "anyOf" in field:
        kinds = [kind_of(one, models, linked) for one in field["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "const" in field or "enum" in field:
        return ", ".join(f"`{one}`" for one in field.get("enum", [field.get("const")]))
    match field.get("type"):
        case "array":
            return f"list of {kind_of(field.get('items', {}), models, linked)}"
        case "string":
            return _text_kind(field)
        case "integer" | "number" as number:
            return f"{number}{_limits(field)}"
        case "object" | None:
            return "table" if field.get("properties") else "any"
        case other:
            return str(other)


def _text_kind(field: Schema) -> str:
    if field.get("pattern") == PATTERN:
        return "duration"
    examples = field.get("examples", ())
    if any(str(one).endswith("%") for one in examples):
        return "duration or share" if len(examples) > 1 else "share"
    return {"date-time": "time", "uuid": "UUID"}.get(str(field.get("format")), "text")


def _limits(field: Schema) -> str:
    least = field.get("minimum", field.get("exclusiveMinimum"))
    most = field.get("maximum")
    if least is None and most is None:
        return ""
    above = "more than " if "exclusiveMinimum" in field else ""
    if most is None:
        return f", {above}{least:,} or more" if not above else f", {above}{least:,}"
    return f", {above}{least:,} to {most:,}" if least is not None else f", at most {most:,}"


def _default(field: Schema) -> str:
    default = field.get("default")
    if default in (None, "", [], {}):
        return ""
    text = json.dumps(default, ensure_ascii=False)
    return f"`{text}`"


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")

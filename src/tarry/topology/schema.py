"""A JSON schema of the topology files, for completion and error highlighting in editors."""

from __future__ import annotations

import json
from typing import Any

from tarry.core.durations import format_duration
from tarry.topology.model import Topology

TITLE = "tarry topology"


def schema_text() -> str:
    """One schema for tarry.toml and for the files in policies/, so no top-level key is required."""
    schema = Topology.model_json_schema(by_alias=True)
    schema.pop("required", None)
    _with_bases(schema)
    for model in (schema, *schema["$defs"].values()):
        for field in model.get("properties", {}).values():
            _as_written(field)
    top = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": TITLE}
    return json.dumps({**schema, **top}, indent=2, ensure_ascii=False) + "\n"


def _with_bases(schema: dict[str, Any]) -> None:
    """A policy that extends a base needs fewer keys; a base has those of a policy, and matches nothing."""
    policy = schema["$defs"]["Policy"]
    needed = [key for key in policy["required"] if key != "name"]
    policy |= {"required": ["name"], "anyOf": [{"required": needed}, {"required": ["extends"]}]}
    keys = {key: of for key, of in policy["properties"].items() if key != "match"}
    described = {"description": "Values for the policies that extend it. It applies to no messages itself."}
    base = {"additionalProperties": False, **described, "properties": keys, "required": ["name"], "type": "object"}
    schema["$defs"] = dict(sorted({**schema["$defs"], "Base": base}.items()))
    schema["properties"]["base"] = {"type": "array", "items": {"$ref": "#/$defs/Base"}, **described}


def _as_written(field: dict[str, Any]) -> None:
    """Durations are stored as milliseconds and written as text. A title that only repeats the key is removed."""
    field.pop("title", None)
    if field.get("type") == "string" and isinstance(field.get("default"), int):
        field["default"] = format_duration(field["default"])

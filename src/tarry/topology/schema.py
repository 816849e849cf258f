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
    for model in (schema, *schema["$defs"].values()):
        for field in model.get("properties", {}).values():
            _as_written(field)
    top = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": TITLE}
    return json.dumps({**schema, **top}, indent=2, ensure_ascii=False) + "\n"


def _as_written(field: dict[str, Any]) -> None:
    """Durations are stored as milliseconds and written as text. A title that only repeats the key is removed."""
    field.pop("title", None)
    if field.get("type") == "string" and isinstance(field.get("default"), int):
        field["default"] = format_duration(field["default"])

"""A JSON schema of the topology files, for editors: completion, and a red line under a typo."""

from __future__ import annotations

import json
from typing import Any

from tarry.core.durations import format_duration
from tarry.topology.model import Topology

TITLE = "tarry topology"


def schema_text() -> str:
    """The same for tarry.toml and for the files in policies/, so no key is required at the top."""
    schema = Topology.model_json_schema(by_alias=True)
    schema.pop("required", None)
    for model in (schema, *schema["$defs"].values()):
        for field in model.get("properties", {}).values():
            _as_written(field)
    top = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": TITLE}
    return json.dumps({**schema, **top}, indent=2, ensure_ascii=False) + "\n"


def _as_written(field: dict[str, Any]) -> None:
    """Durations are held as milliseconds and written as text; a title that repeats the key says nothing."""
    field.pop("title", None)
    if field.get("type") == "string" and isinstance(field.get("default"), int):
        field["default"] = format_duration(field["default"])

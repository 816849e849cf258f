"""A JSON schema of the topology files, for editors: completion, and a red line under a typo."""

from __future__ import annotations

import json

from tarry.topology.model import Topology

TITLE = "tarry topology"


def schema_text() -> str:
    """The same for tarry.toml and for the files in policies/, so no key is required at the top."""
    schema = Topology.model_json_schema(by_alias=True)
    schema.pop("required", None)
    top = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": TITLE}
    return json.dumps({**schema, **top}, indent=2, ensure_ascii=False) + "\n"

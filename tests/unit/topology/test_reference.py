"""The generated page of the topology files. `make check` proves that it is fresh."""

from __future__ import annotations

import re

from tarry.core.policy import Policy
from tarry.topology.reference import key_table, kind_of, topology_markdown


def test_topology_reference_has_every_key_of_a_policy_with_its_type() -> None:
    section = topology_markdown().partition("\n## policy\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))
    assert set(rows) == {field.alias or name for name, field in Policy.model_fields.items()}
    assert (rows["jitter"], rows["max_age"], rows["breaker"]) == (
        "duration or share",
        "duration",
        "[breaker](#breaker)",
    )


def test_topology_reference_links_to_sections_that_it_has() -> None:
    page = topology_markdown()
    assert set(re.findall(r"\(#(\w+)\)", page)) <= set(re.findall(r"^## (\w+)$", page, re.MULTILINE))


def test_key_table_has_types_limits_and_what_is_required() -> None:
    fields = {
        "rate": {"type": "integer", "minimum": 1, "maximum": 5_000, "default": 10, "description": "a | b"},
        "who": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    }
    rows = key_table({"properties": fields, "required": ["who"]}, {}).splitlines()[2:]
    assert rows == ["| `rate` | integer, 1 to 5,000 | `10` | a \\| b |", "| `who` | text | required |  |"]


def test_kind_of_names_choices_and_lists() -> None:
    choices = {"Over": {"enum": ["defer", "skip"], "type": "string"}}
    assert kind_of({"type": "array", "items": {"$ref": "#/$defs/Over"}}, choices) == "list of `defer`, `skip`"

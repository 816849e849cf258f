from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tarry.contract import headers as h
from tarry.contract.retry_pb2 import RetryMessage
from tarry.topology.load import load, shipped

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "contract.md").read_text(encoding="utf-8")
NAMES = sorted(
    value
    for name, value in vars(h).items()
    if name.isupper() and isinstance(value, str) and name not in {"OURS", "DEATHS", "PROBE"}
)


@pytest.mark.parametrize("name", NAMES)
def test_every_header_is_explained(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_every_field_of_the_envelope_is_shown_with_its_number() -> None:
    for field in RetryMessage.DESCRIPTOR.fields:
        assert re.search(rf"\b{field.name} = {field.number};", PAGE), field.name


def test_each_form_has_an_example_in_each_language() -> None:
    for form in ("## 1. A bare reject", "## 2. Headers", "## 3. An envelope"):
        section = PAGE.partition(form)[2].partition("\n## ")[0]
        assert re.findall(r"```(python|js|java)\n", section) == ["python", "js", "java"], form


def test_the_python_examples_are_python() -> None:
    for example in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        ast.parse(example)


def test_the_shipped_policies_are_all_on_their_page() -> None:
    page = (DOCS / "policies.md").read_text(encoding="utf-8")
    for policy in load(shipped()).policies:
        assert f"| `{policy.name}` |" in page

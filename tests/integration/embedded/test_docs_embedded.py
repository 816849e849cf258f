"""The Python block of docs/embedded.md, run as it stands: a broker, a Postgres, and a cluster of three."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tarry.errors import NoBrokerError
from tests.support.wanted import missing

PAGE = (Path(__file__).parents[3] / "docs" / "embedded.md").read_text(encoding="utf-8")


@pytest.mark.chaos
@pytest.mark.one_series
def test_docs_embedded_block_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    try:
        exec(block, {})  # noqa: S102  our own page
    except NoBrokerError as problem:
        missing(str(problem))
    assert re.search(r"^amqp://\S+ http://\S+ postgresql://\S+$", capsys.readouterr().out, re.MULTILINE)

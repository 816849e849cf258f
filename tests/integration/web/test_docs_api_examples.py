from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.api import OPERATE, ApiInstallation

pytestmark = pytest.mark.one_series

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
CALLS = [line for block in BLOCKS for line in block.replace("\\\n  ", "").splitlines() if line.startswith("curl ")]


@pytest.fixture
def shell(api: ApiInstallation) -> dict[str, str]:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    retry = api.schedule("orders", "ORDER-4711", retry_after_ms=200_000)
    other = api.schedule("orders", "ORDER-4712", retry_after_ms=200_000)
    api.installation.request("orders", "ORDER-4713", error_class="final")
    return {"TARRY_API": api.url, "TARRY_TOKEN": OPERATE, "RETRY": retry, "OTHER": other}


def test_there_are_examples_of_everything() -> None:
    assert len(CALLS) >= 15
    assert {"cancel", "retry", "pause", "resume", "jobs"} <= {re.split(r"[/\"]", call)[-2] for call in CALLS}


def test_the_examples_work_in_the_order_of_the_page(shell: dict[str, str]) -> None:
    """One test for all: some of them build on those before."""
    for call in CALLS:
        ask = f"{call} -w '\\n%{{http_code}}'"
        done = subprocess.run(["sh", "-c", ask], env=os.environ | shell, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{call}\n{done.stderr}"
        text, _, status = done.stdout.rpartition("\n")
        if "csv" in call:
            assert (status, text.splitlines()[0].count(",") > 0) == ("200", True), f"{call}\n{text}"
            continue
        answer = json.loads(text)
        if "quue" in call:
            shown = json.loads(PAGE.partition("```json\n")[2].partition("```")[0])
            assert answer == shown
        else:
            assert status in {"200", "201"}, f"{call}\n{text}"


def test_every_path_in_the_tables_is_one_that_there_is(api: ApiInstallation) -> None:
    described = {re.sub(r"\{[^}]*\}", "{}", path) for path in api.get("/openapi.json")["paths"]}
    told = re.findall(r"`(?:GET|POST) (/[^`?…]*)`", PAGE)
    assert len(told) > 10
    for path in told:
        assert "/api/v1" + re.sub(r"\{[^}]*\}", "{}", path) in described, path


def test_every_status_that_is_described_is_in_the_table(api: ApiInstallation) -> None:
    told = set(re.findall(r"\b[45]\d\d\b", PAGE.partition("| status | when")[2]))
    described = {
        status
        for path, operations in api.get("/openapi.json")["paths"].items()
        for operation in operations.values()
        for status in operation["responses"]
        if path.startswith("/api/") and status >= "400"
    }
    assert described <= told


def test_the_reference_has_the_paths_that_a_service_describes(api: ApiInstallation) -> None:
    page = (Path(__file__).parents[3] / "docs" / "api-reference.md").read_text(encoding="utf-8")
    described = {
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, operations in api.get("/openapi.json")["paths"].items()
        for method in operations
        if path.startswith("/api/v1/")
    }
    assert set(re.findall(r"^### ([A-Z]+ /\S*)$", page, re.MULTILINE)) == described

"""clients/: the unit tests of each, their versions and types, and the table of docs/clients.md."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tarry
from tests.integration.client.conformance import MORE, table
from tests.support import runtimes

ROOT = Path(__file__).parents[3]
NODE = ROOT / "clients" / "node"


def said(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_node_client_passes_its_unit_tests() -> None:
    runtimes.require("node")
    told = said("node", "--test", "--test-reporter=tap", NODE / "test" / "unit.test.js")
    assert re.search(r"^# pass [1-9]", told, re.MULTILINE)


def test_java_client_passes_its_unit_tests() -> None:
    assert re.search(r"^[1-9]\d* tests passed", said("java", "-cp", runtimes.java_classpath(), "UnitTests"))


def test_java_client_has_the_version_of_tarry() -> None:
    jar = runtimes.java_classpath().partition(":")[0]
    assert f"Implementation-Version: {tarry.__version__}" in said("unzip", "-p", jar, "META-INF/MANIFEST.MF")


@pytest.mark.parametrize(
    "path", ["clients/node/package.json", "clients/node/package-lock.json", "examples/node-client/package-lock.json"]
)
def test_node_client_has_the_version_of_tarry(path: str) -> None:
    found: dict[str, Any] = json.loads((ROOT / path).read_text(encoding="utf-8"))
    about = found["packages"]["../../clients/node"] if path.startswith("examples") else found
    assert about["version"] == tarry.__version__, f"{path}: see Releasing in CONTRIBUTING.md"


def test_node_client_has_types_for_all_that_it_exports() -> None:
    exported = re.findall(r"export \{ ([^}]*) \}", (NODE / "index.js").read_text(encoding="utf-8"))
    typed = re.findall(
        r"^export (?:class|function) (\w+)", (NODE / "index.d.ts").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(", ".join(exported).split(", ")) == sorted(typed)


def test_node_client_has_types_for_all_options() -> None:
    defaults = (NODE / "lib" / "options.js").read_text(encoding="utf-8").partition("const DEFAULTS = {")[2]
    options = (NODE / "index.d.ts").read_text(encoding="utf-8").partition("export interface Options {")[2]
    names = re.findall(r"^  (\w+)\?:", options.partition("\n}")[0], re.MULTILINE)
    assert re.findall(r"^  (\w+):", defaults.partition("\n}")[0], re.MULTILINE) == names


@pytest.mark.parametrize("name", MORE)
def test_clients_table_names_tests_that_run_against_every_client(name: str) -> None:
    sources = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests/integration/client").glob("test_*.py")
    )
    (signature,) = re.findall(rf"^def {name}\(([^)]*)\)", sources, re.MULTILINE)
    assert "adapter: type[Consumer]" in signature


def test_clients_page_has_the_table_of_cases() -> None:
    page = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    assert table() in page, "write the output of `python -m tests.integration.client.conformance` into it"


def test_missing_runtimes_fail_in_ci_unless_they_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TARRY_ALLOW_MISSING_RUNTIMES", raising=False)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="NO JAVA: its client is not tested"):
        runtimes.missing("java", "It is not there.")
    monkeypatch.setenv("TARRY_ALLOW_MISSING_RUNTIMES", "node,java")
    with pytest.raises(pytest.skip.Exception, match="NO JAVA"):
        runtimes.missing("java", "It is not there.")

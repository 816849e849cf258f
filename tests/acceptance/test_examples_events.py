"""The consumers of events under examples/, as their reader would run them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.acceptance.audited import AuditedInstallation
from tests.acceptance.test_examples import node
from tests.acceptance.up_command import running
from tests.support.waiting import wait_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "events"


def command(language: str, folder: Path) -> list[str]:
    if language == "python":
        return [sys.executable, "-u", "consumer.py", "offset"]
    node(folder)  # installs, or skips the test
    return ["node", "consumer.js", "offset"]


def types(text: str) -> list[str]:
    return [json.loads(line)["type"].rpartition(".")[2] for line in text.splitlines() if line.startswith('{"id"')]


@pytest.mark.parametrize("language", ["python", "node"])
def test_a_consumer_reads_all_events_once_and_goes_on_where_it_was(
    language: str, installation: AuditedInstallation, tmp_path: Path
) -> None:
    folder = tmp_path / "examples" / "events"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules"))
    start = command(language, folder)
    main = installation.folder / "tarry.toml"
    main.write_text(f"{main.read_text()}\n[events]\nenabled = true\n", encoding="utf-8")
    installation.apply()
    installation.start()
    wait_for(lambda: installation.rows("select from event_position"), deadline=60, what="the first look for events")
    installation.request(installation.declare("orders"), "first")
    with running(start, os.environ | installation.environment, folder) as consumer:
        wait_for(lambda: types(consumer.text) == ["scheduled", "returned"], deadline=60, what="both events")
    installation.request("orders", "second")
    with running(start, os.environ | installation.environment, folder) as consumer:
        wait_for(lambda: types(consumer.text) == ["scheduled", "returned"], deadline=60, what="the next events only")

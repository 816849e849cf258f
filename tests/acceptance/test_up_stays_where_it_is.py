"""`tarry up` again and again on one folder: the same addresses, and a log to read."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.acceptance.up_command import up
from tests.harness.waiting import wait_for


def addresses(text: str, exports: dict[str, str]) -> dict[str, int | None]:
    """Every port that somebody may have written down."""
    health = re.findall(r"health\s+(\S+)/readyz", text)
    return {url: urlsplit(url).port for url in [*exports.values(), *health]}


def test_up_keeps_its_four_ports_over_a_restart(series: str | None, open_folder: Path) -> None:
    with up(open_folder, series) as first:
        before = addresses(first.text, first.exports)
    with up(open_folder, series) as second:
        assert addresses(second.text, second.exports) == before
        assert "is in use" not in second.text
    assert list(first.exports) == ["RABBITMQ_URL", "RABBITMQ_MANAGEMENT_URL", "DATABASE_URL"]
    assert len(before) == 4


@pytest.mark.one_series
def test_up_replaces_only_the_ports_that_are_taken_and_says_so(series: str | None, open_folder: Path) -> None:
    with up(open_folder, series) as first:
        before = first.exports
        health = re.findall(r"health\s+\S+:(\d+)/readyz", first.text)[0]
    taken = [urlsplit(before["RABBITMQ_MANAGEMENT_URL"]).port or 0, int(health)]
    first_taken, second_taken = (socket.create_server(("127.0.0.1", port)) for port in taken)
    with first_taken, second_taken, up(open_folder, series) as second:
        after = second.exports
    for name in ("RABBITMQ_URL", "DATABASE_URL"):
        assert after[name] == before[name]
    assert f"The management port was {taken[0]}, which is in use; it is " in second.text
    assert f"The HTTP port was {taken[1]}, which is in use; it is " in second.text


@pytest.mark.one_series
def test_up_keeps_the_log_of_the_service_and_follows_it(series: str | None, open_folder: Path) -> None:
    with up(open_folder, series, "--follow") as made:
        wait_for(lambda: re.search(r"(?m)^\d{4}-\S+ .*started", made.text), what="the service's first line")
    log = open_folder / "up" / "service.log"
    assert "started" in log.read_text()
    assert "\x1b[" not in log.read_text()
    assert re.search(rf"service's log\s+{re.escape(str(log))}", made.text)
    with up(open_folder, series) as again:
        assert "started" in (open_folder / "up" / "service.log.1").read_text()
    assert not re.search(r"(?m)^\d{4}-\S+ .*started", again.text)

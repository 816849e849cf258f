"""Statistics as operators see them: counted by the service from its history, with commands, over HTTP and on a page."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import psycopg
import pytest

from tarry.settings.tokens import Role, new_token
from tests.integration.operations.terminal import Terminal
from tests.support.api import LOOK, TOKENS, ApiInstallation, api_installation
from tests.support.seeded_history import Key, SeededHistory, expected_counts
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series

POLICIES = """
[ladder]
levels = 4

[[policy]]
name = "policy-1"
match = { queue = "queue-1" }
schedule = ["5m"]
cost = 3
max_retries = 3

[[policy]]
name = "default"
schedule = ["250ms"]
max_retries = 2
"""
NAMES = ("scheduled", "returned", "succeeded", "failed", "exhausted", "reviewed", "skipped")
FORMULA = "=cmd|' /C calc'!A0"

LIMITED, LIMITED_ENTRY = new_token("team", Role.LOOK, ["queue-1", "queue-2"])


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    """One service for this file, which makes an audit pass every second."""
    folder = tmp_path_factory.mktemp("statistics")
    (folder / "topology").mkdir()
    (folder / "topology" / "tarry.toml").write_text(POLICIES)
    settings = TOKENS | {"API_TOKENS": f"{TOKENS['API_TOKENS']}, {LIMITED_ENTRY}", "TARRY_LOOK_EVERY": "1s"}
    with api_installation(broker, services, folder, **settings) as made:
        yield made


@pytest.fixture(scope="module")
def counts(api: ApiInstallation) -> Counter[Key]:
    """Of a history that the service has counted, in its passes."""
    since = datetime.now(UTC) - timedelta(hours=2)
    wait_for(lambda: api.rows("select from statistic_position"), deadline=120, what="the first pass")
    with psycopg.connect(api.installation.dsn, autocommit=True) as connection:
        connection.execute("set time zone 'UTC'")
        history = SeededHistory(connection, 300, since, 3_600, owners=10)
        connection.execute("update retry set error_reason = %s", (FORMULA,))
        history.write()
        found = expected_counts(connection)
    numbers = {name: _sum(found, name) for name in NAMES}

    def is_counted() -> bool:
        total = api.get("/statistics", params={"since": "4h"})["total"]
        return {name: total[name] for name in NAMES} == numbers

    wait_for(is_counted, deadline=120, what="the service to have counted what was written")
    return found


def _sum(counts: Counter[Key], what: str, **about: str | int) -> int:
    return sum(
        number
        for key, number in counts.items()
        if key.what == what and all(getattr(key, name) == value for name, value in about.items())
    )


@pytest.mark.parametrize("where", ["local", "remote"])
@pytest.mark.parametrize("by", ["queue", "policy", "error", "owner", "attempt"])
def test_stats_equal_the_history(api: ApiInstallation, counts: Counter[Key], by: str, where: str) -> None:
    found = Terminal(api, where == "remote").json("stats", "--by", by, "--since", "4h")
    assert found["notes"] == []
    assert {row[by] for row in found["rows"]} == {getattr(key, by) for key in counts}
    for row in (*found["rows"], found["total"]):
        about = {} if row[by] is None else {by: row[by]}
        assert {name: row[name] for name in NAMES} == {name: _sum(counts, name, **about) for name in NAMES}
        dear = 0 if by == "policy" and row[by] not in ("policy-1", None) else 2
        assert row["cost"] == row["returned"] + dear * _sum(counts, "returned", **{**about, "policy": "policy-1"})


def test_stats_over_time_add_up_and_are_filtered(api: ApiInstallation, counts: Counter[Key]) -> None:
    terminal = Terminal(api, remote=False)
    found = terminal.json("stats", "--over", "hour", "--since", "4h", "--queue", "queue-1*", "--attempt", "1")
    hours: Counter[str] = Counter()
    for key, number in counts.items():
        if key.what == "succeeded" and key.queue.startswith("queue-1") and key.attempt == 1:
            hours[key.hour.isoformat()] += number
    assert {row["starts"]: row["succeeded"] for row in found["rows"] if row["succeeded"]} == dict(hours)
    assert found["total"]["succeeded"] == hours.total()


def test_stats_of_many_values_are_the_largest(api: ApiInstallation, counts: Counter[Key]) -> None:
    found = Terminal(api, remote=True).json("stats", "--by", "error", "--limit", "3", "--since", "4h", "--over", "hour")
    sizes: Counter[str] = Counter()
    for key, number in counts.items():
        if key.what in ("scheduled", "returned", "exhausted", "reviewed", "skipped"):
            sizes[key.error] += number
    least = sizes.most_common(3)[-1][1]
    assert found["more"] is True
    assert len({row["error"] for row in found["rows"]}) == 3
    assert all(sizes[row["error"]] >= least for row in found["rows"])
    assert found["total"]["scheduled"] == _sum(counts, "scheduled")


def test_stats_are_a_table_with_what_errors_stand_for(api: ApiInstallation, counts: Counter[Key]) -> None:
    shown = Terminal(api, remote=False).run("stats", "--by", "error", "--since", "4h", "--limit", "2").stdout
    assert "time to success, and drift of the returns" in shown
    assert f"Error: {FORMULA}" in shown
    assert f"{_sum(counts, 'scheduled'):,}" in next(one for one in shown.splitlines() if one.startswith("all"))
    nothing = Terminal(api, remote=False).run("stats", "--queue", "unheard-of")
    assert (nothing.exit_code, "nothing happened" in nothing.stdout) == (0, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--by", "owner", "--attempt", "1"), "by owner are not divided by error or by attempt"),
        (("--since", "1h", "--until", "2h"), "must begin before it ends"),
        (("--json", "--csv"), "give one of them"),
    ],
)
def test_stats_that_cannot_be_are_refused(api: ApiInstallation, words: tuple[str, ...], message: str) -> None:
    refused = Terminal(api, remote=False).run("stats", *words)
    assert (refused.exit_code, message in refused.output) == (2, True)


def test_a_csv_has_a_line_for_each_row_and_no_formula(api: ApiInstallation, counts: Counter[Key]) -> None:
    answer = api.call("GET", "/statistics", token=LOOK, params={"by": "error", "since": "4h", "format": "csv"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    lines = list(csv.DictReader(io.StringIO(answer.text)))
    assert {line["error"]: int(line["failed"]) for line in lines} == {
        error: _sum(counts, "failed", error=error) for error in {key.error for key in counts}
    }
    assert {line["example"] for line in lines} == {f"'{FORMULA}"}
    assert "queue" not in lines[0]
    printed = Terminal(api, remote=False).run("stats", "--by", "error", "--since", "4h", "--csv").stdout
    assert list(csv.DictReader(io.StringIO(printed))) == lines


def test_a_limited_token_has_statistics_of_its_queues(api: ApiInstallation, counts: Counter[Key]) -> None:
    found = api.get("/statistics", token=LIMITED, params={"by": "queue", "since": "4h"})
    assert {row["queue"] for row in found["rows"]} == {"queue-1", "queue-2"}
    both = sum(_sum(counts, "returned", queue=one) for one in ("queue-1", "queue-2"))
    assert found["total"]["returned"] == both
    assert api.get("/statistics", token=LIMITED, params={"queue": "queue-3"})["total"]["returned"] == 0


def test_the_page_shows_and_exports_them(api: ApiInstallation, counts: Counter[Key]) -> None:
    with httpx.Client(base_url=api.url, timeout=30) as client:
        key = re.search(r'name="form_key" value="([0-9a-f]{64})"', client.get("/login").text)
        assert key is not None
        assert client.post("/login", data={"form_key": key[1], "token": LOOK}).status_code == 303
        page = client.get("/statistics", params={"since": "24h"}).text
        exported = client.get("/statistics/export", params={"since": "24h", "by": "queue", "format": "json"})
        plain = client.get("/statistics/export", params={"since": "24h", "format": "csv"})
        wrong = client.get("/statistics", params={"since": "1y"})
    assert f"<dt>succeeded</dt><dd>{_sum(counts, 'succeeded'):,}</dd>" in page
    assert page.count('class="chart') == 4
    assert "By error" in page
    rows = json.loads(exported.text)["rows"]
    assert sum(row["returned"] for row in rows) == _sum(counts, "returned")
    assert "attachment" in exported.headers["content-disposition"]
    lines = list(csv.DictReader(io.StringIO(plain.text)))
    assert sum(int(line["cost"]) for line in lines) > _sum(counts, "returned")
    assert wrong.status_code == 422

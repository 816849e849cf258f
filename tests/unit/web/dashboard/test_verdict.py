from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tarry.analytics.anomalies import Kind
from tarry.attach.listing import AttachmentState
from tarry.audit.anomalies import AnomalyNow
from tarry.audit.status import Counts, RouterStatus
from tarry.core.breaker import BreakerState
from tarry.operations.breaker import BreakerView
from tarry.operations.intake import Intake
from tarry.operations.overview import Activity
from tarry.operations.pause import DestinationPause, Pauses
from tarry.operations.status import AttachmentStatus, ServiceStatus
from tarry.operations.verdict import Level, Seen, judge

NOW = datetime(2030, 1, 31, tzinfo=UTC)
NUMBERS = Counts(100, 1, 2, 0, 0, 0, 0, 0, 0)
STATUS = ServiceStatus(None, NUMBERS, [], {}, [], [], [], [])
QUIET = Activity([0] * 60, [0] * 60, 0, None, None, None)
PAUSES = Pauses([], [], Intake(paused=False))
FINE = Seen(STATUS, QUIET, PAUSES, 0, 0)
ROUTER = RouterStatus("r-1", "host", 1, "0.1.0", NOW, NOW, True, 1.0, [], True)
PAUSED = DestinationPause("orders", "holding", NOW, 3, 3, 0, None, "", None, None, [])


BREAKER = BreakerView(
    *(
        "orders",
        BreakerState.OPEN,
        NOW,
        10,
        9,
        0.9,
        NOW,
        60.0,
        "orders",
        "half of 10 in 5m",
        "9 of 10 returns failed again",
    ),
    *(None, None, None, None, None),
)


def with_numbers(**numbers: int) -> Seen:
    return replace(FINE, status=replace(STATUS, audit=replace(NUMBERS, **numbers)))


def with_status(**changed: object) -> Seen:
    return replace(FINE, status=replace(STATUS, **changed))  # type: ignore[arg-type]


def with_pause(**changed: object) -> Seen:
    return replace(FINE, pauses=replace(PAUSES, paused_destinations=[replace(PAUSED, **changed)]))  # type: ignore[arg-type]


ANOMALY = AnomalyNow(Kind.QUEUE, "orders", NOW, 0.95, 0.25, 0.97, 200, 190, "TimeoutError")

CASES: dict[str, tuple[Seen, Level, str]] = {
    "anomaly": (with_status(anomalies=[ANOMALY]), "attention", "orders: 95% of 200 returns failed again, usually 25%"),
    "missing": (replace(FINE, missing=2), "wrong", "2 retries are missing on the broker"),
    "one missing": (replace(FINE, missing=1), "wrong", "1 retry is missing on the broker"),
    "overdue": (with_numbers(overdue=1_500), "wrong", "1,500 retries are overdue"),
    "unroutable": (with_numbers(unroutable=1), "wrong", "1 retry has no destination"),
    "old review": (with_numbers(in_review=7), "attention", "7 messages are in review"),
    "new review": (
        replace(with_numbers(in_review=7), activity=replace(QUIET, reviewed=[0] * 59 + [3])),
        "wrong",
        "7 messages are in review, 3 of them came in the last hour",
    ),
    "silent router": (with_status(routers=[replace(ROUTER, reports=False)]), "wrong", "host (1) stopped reporting"),
    "router in trouble": (with_status(routers=[replace(ROUTER, troubles=["x"])]), "attention", "host (1): x"),
    "stuck": (replace(FINE, stuck=1), "attention", "1 attempt has started"),
    "intake": (replace(FINE, pauses=replace(PAUSES, intake=Intake(paused=True))), "attention", "The intake is paused"),
    "paused": (with_pause(), "attention", "orders: paused, 3 messages are held"),
    "canary": (with_pause(state="canary_failed"), "wrong", "orders: its canary failed"),
    "breaker": (replace(FINE, breakers=[BREAKER]), "wrong", "orders: its breaker is open. 9 of 10 returns"),
    "probe": (
        replace(FINE, breakers=[replace(BREAKER, state=BreakerState.HALF_OPEN)]),
        "attention",
        "orders: its breaker is half-open",
    ),
    "attachment": (
        with_status(attachments=[AttachmentStatus("q", "queue", AttachmentState.GONE, "it is gone", None)]),
        "wrong",
        "q is not attached as it should be: it is gone",
    ),
    "unreadable": (with_status(troubles=["the broker is away"]), "wrong", "the broker is away"),
    "not ready": (replace(FINE, troubles=["waiting for the broker"]), "wrong", "waiting for the broker"),
}


def test_nothing_is_wrong_when_nothing_is() -> None:
    assert judge(FINE).level == "ok"
    assert judge(FINE).findings == []


def test_a_closed_breaker_is_no_finding() -> None:
    assert judge(replace(FINE, breakers=[replace(BREAKER, state=BreakerState.CLOSED)])).findings == []


def test_a_release_and_a_throttle_are_not_findings() -> None:
    assert judge(with_pause(state="releasing")).level == "ok"
    assert judge(with_pause(state="throttled")).level == "ok"


@pytest.mark.parametrize("case", CASES)
def test_each_cause_has_its_level_and_says_what(case: str) -> None:
    seen, level, what = CASES[case]
    found = judge(seen)
    assert found.level == level
    assert [what in one.what for one in found.findings] == [True]


def test_the_worst_finding_comes_first_and_decides() -> None:
    found = judge(replace(with_numbers(overdue=1, in_review=1), stuck=1))
    assert [one.level for one in found.findings] == ["wrong", "attention", "attention"]
    assert found.level == "wrong"


def test_what_could_not_be_read_is_never_green() -> None:
    seen = Seen(replace(STATUS, audit=None, troubles=["Postgres is away"]), None, None, None, None)
    assert judge(seen).level == "wrong"


@pytest.mark.parametrize("case", CASES)
def test_each_finding_names_a_section_of_the_runbook(case: str) -> None:
    runbook = Path("docs/operations.md").read_text(encoding="utf-8")
    sections = set(re.findall(r"^## (.+)$", runbook, re.MULTILINE))
    assert {one.section for one in judge(CASES[case][0]).findings} <= sections


def test_a_red_verdict_says_whether_anything_is_lost() -> None:
    failed = with_pause(state="canary_failed")
    assert judge(failed).title == "Nothing is lost, but something is wrong"
    assert judge(replace(failed, missing=2)).title == "Retries are missing on the broker"


@pytest.mark.parametrize(
    "unproven",
    [
        replace(with_pause(state="canary_failed"), missing=None),
        with_numbers(overdue=1),
        with_status(troubles=["the broker is away"]),
        with_status(audit=None, troubles=["Postgres is away"]),
        replace(FINE, troubles=["waiting for the broker"]),
    ],
)
def test_a_red_verdict_does_not_say_that_nothing_is_lost_unproven(unproven: Seen) -> None:
    assert judge(unproven).title == "Something is wrong"


def test_the_link_of_a_finding_names_its_destination_briefly() -> None:
    (found,) = judge(with_pause(destination="q" * 200)).findings
    assert found.link_text == f"Open {'q' * 39}…"


def test_the_verdict_does_not_say_that_nothing_is_lost_before_it_is_known() -> None:
    for seen in (replace(FINE, missing=None), replace(FINE, missing=None, stuck=1)):
        verdict = judge(seen)
        assert "lost" not in verdict.title
        assert verdict.title.startswith("Nothing is late")
        assert "Nothing is lost" in judge(replace(seen, missing=0)).title

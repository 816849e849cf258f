from __future__ import annotations

import pytest

from tests.support.promql import mistakes, named

SERIES = {"up": {"job"}, "hits_total": {"queue", "status"}, "took_bucket": {"le", "queue"}}


@pytest.mark.parametrize(
    ("expr", "selectors", "grouped"),
    [
        ("up", {("up", frozenset())}, set()),
        ("max(up) == 1", {("up", frozenset())}, set()),
        (
            'sum by (queue) (rate(hits_total{status!="ok", queue=~"a|b"}[5m])) > 0',
            {("hits_total", frozenset({"status", "queue"}))},
            {"queue"},
        ),
        ("sum(rate(hits_total[5m])) by (queue)", {("hits_total", frozenset())}, {"queue"}),
        (
            "histogram_quantile(0.99, sum by (le, queue) (rate(took_bucket[$__rate_interval])))",
            {("took_bucket", frozenset())},
            {"le", "queue"},
        ),
        (
            "(sum(up) == 0 unless max(hits_total) == 1) or absent(up)",
            {("up", frozenset()), ("hits_total", frozenset())},
            set(),
        ),
        ("up * on (job) group_left hits_total offset 1h", {("up", frozenset()), ("hits_total", frozenset())}, {"job"}),
    ],
)
def test_promql_names(expr: str, selectors: set[tuple[str, frozenset[str]]], grouped: set[str]) -> None:
    assert tuple(map(set, named(expr))) == (selectors, grouped)
    assert mistakes(expr, SERIES) == []


@pytest.mark.parametrize(
    ("expr", "mistake"),
    [
        ("rate(misses_total[5m])", "no metric misses_total"),
        ('hits_total{state="ok"}', "no label state on hits_total"),
        ("sum by (tier) (hits_total)", "no label tier"),
        ("1 + 1", "it names no metric"),
    ],
)
def test_promql_mistakes_are_found(expr: str, mistake: str) -> None:
    assert mistakes(expr, SERIES) == [mistake]

from __future__ import annotations

from benchmarks.suite.charts import charts
from benchmarks.suite.markdown import table
from benchmarks.suite.page import page
from benchmarks.suite.samples import Failure, Sample
from tests.unit.benchmarks.results import rates, result

MEASURED = (*rates("end to end", "tarry", 4000, 4400), *rates("end to end", "other", 1000, 1100))


def test_it_tells_ratios_with_their_spread_versions_and_settings() -> None:
    text = page(result(*MEASURED), [])
    assert "| The other | 1,050 (1,000 to 1,100) | 4.00 |" in text
    assert "thing 1.2" in text
    assert "*a*: b" in text
    assert "RabbitMQ 4.3.6" in text
    assert "The run took 1 minutes: end-to-end 61 s." in text


def test_a_contender_that_broke_is_a_row_that_says_so() -> None:
    text = page(result(*rates("end to end", "tarry", 1), failures=(Failure("end to end", "other", "no\nstart"),)), [])
    assert "| The other | broke: no start | – |" in text


def test_scenarios_that_did_not_run_have_no_heading() -> None:
    text = page(result(*MEASURED), [])
    assert "## Drift" not in text
    assert "## End to end" in text


def test_a_chart_is_shown_where_it_was_drawn() -> None:
    drawn = charts(result(*MEASURED))
    assert list(drawn) == ["bench-end-to-end.svg"]
    assert "![End to end](img/bench-end-to-end.svg)" in page(result(*MEASURED), list(drawn))
    assert "![End to end]" not in page(result(*MEASURED), [])


def test_a_promise_not_kept_is_explained_with_the_figures_of_the_run() -> None:
    costs = [
        Sample("end to end", subject, f"cpu_{part}_s", seconds)
        for subject, all_ in (("tarry", (10, 30, 5)), ("polling-tuned", (8, 7, 4)))
        for part, seconds in zip(("own", "broker", "postgres"), all_, strict=True)
    ]
    slower = (*rates("end to end", "tarry", 4000), *rates("end to end", "polling-tuned", 8000), *costs)
    text = page(result(*slower), [])
    assert "### Where it falls short, and why" in text
    assert "45.0 s for 100,000 retries, 30.0 of them in RabbitMQ, 1.80 cores in use for tarry, 19.0 s" in text
    assert "falls short" not in page(result(*MEASURED), [])


def test_a_cell_cannot_break_its_table() -> None:
    assert table(("a",), [["x | y\nz"]]) == "| a |\n|---|\n| x / y z |\n"

from __future__ import annotations

from benchmarks.suite.promises import Promise, promises, quick_promises
from benchmarks.suite.samples import Sample, Samples
from tests.unit.benchmarks.results import rates


def judged(*samples: Sample) -> dict[str, str]:
    return {one.text: one.verdict for one in promises(Samples(samples))}


def test_three_times_a_contender_is_kept_at_exactly_three() -> None:
    told = "audited end-to-end throughput, times that of celery-native"
    assert judged(*rates("end to end", "tarry", 300), *rates("end to end", "celery-native", 100))[told] == "kept"
    assert judged(*rates("end to end", "tarry", 299), *rates("end to end", "celery-native", 100))[told] == "broken"


def test_what_was_not_measured_is_neither_kept_nor_broken() -> None:
    assert set(judged().values()) == {"not measured"}
    assert [one.kept for one in quick_promises(Samples())] == [None] * len(quick_promises(Samples()))


def test_drift_is_kept_below_its_limit() -> None:
    told = "drift p99 at 1,000/s, tarry"
    assert judged(Sample("drift", "tarry", "p99 at 1000/s", 59))[told] == "kept"
    assert judged(Sample("drift", "tarry", "p99 at 1000/s", 61))[told] == "broken"


def test_a_full_broker_is_held_against_an_empty_one() -> None:
    found = judged(
        *rates("backlog", "0 waiting", 1000),
        *rates("backlog", "1,000,000 waiting", 700),
        Sample("backlog", "0 waiting", "p99 at 200/s", 20),
        Sample("backlog", "1,000,000 waiting", "p99 at 200/s", 30),
    )
    assert found["throughput with 1,000,000 waiting, as a fraction of that with none"] == "broken"
    assert found["drift p99 at 200/s with 1,000,000 waiting, more than with none"] == "kept"


def test_the_drain_with_the_tap_read_is_what_counts() -> None:
    found = judged(
        *rates("drain", "bare tier", 8000),
        *rates("drain", "whole way", 8000),
        *rates("drain", "whole way, tap read", 3900),
    )
    assert found["20,000 due at once, as a fraction of the bare tier's own drain"] == "broken"


def test_a_promise_says_what_it_found() -> None:
    assert Promise("p", None, 1.0).verdict == "not measured"

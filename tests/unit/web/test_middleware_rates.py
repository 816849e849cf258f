from __future__ import annotations

from tarry.web.api.middleware import MOST_CALLERS, Rates


def test_a_burst_is_taken_and_then_the_rate_is_kept() -> None:
    now = [0.0]
    rates = Rates(10, lambda: now[0])
    assert [rates.take("a") for _ in range(20)] == [0.0] * 20
    assert round(rates.take("a"), 3) == 0.1
    assert rates.take("b") == 0.0, "another caller has a bucket of its own"
    now[0] += 0.1
    assert (rates.take("a"), rates.take("a") > 0) == (0.0, True)
    now[0] += 3600
    assert [rates.take("a") for _ in range(20)] == [0.0] * 20
    assert rates.take("a") > 0, "an hour's rest is not an hour's burst"


def test_no_rate_is_no_limit() -> None:
    assert not any(Rates(0).take("a") for _ in range(10_000))


def test_strangers_cannot_fill_the_memory() -> None:
    rates = Rates(1, lambda: 0.0)
    for number in range(MOST_CALLERS + 50):
        rates.take(f"@{number}")
    assert len(rates._buckets) == MOST_CALLERS

from __future__ import annotations

import pytest

from tests.support import wanted
from tests.support.waiting import eventually, wait_for


def test_the_first_true_value_is_returned() -> None:
    values = iter([0, None, "", "there"])
    assert wait_for(lambda: next(values)) == "there"


def test_a_failure_names_the_wish_and_the_last_sight() -> None:
    with pytest.raises(AssertionError, match=r"waited 0\.05 s for a miracle, last seen: \[\]"):
        wait_for(list, deadline=0.05, what="a miracle")


def test_asserts_are_repeated_until_they_pass() -> None:
    values = iter([1, 2, 3])

    def check() -> int:
        value = next(values)
        assert value == 3
        return value

    assert eventually(check) == 3


def test_asserts_that_never_pass_fail_as_themselves() -> None:
    def check() -> None:
        raise AssertionError("not yet")

    with pytest.raises(AssertionError, match="not yet") as caught:
        eventually(check, deadline=0.05)
    assert caught.value.__notes__ == ["still so after 0.05 s"]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [("any", [None]), ("3.10", ["3.10"]), ("all", ["3.10", "4.3"])],
)
def test_broker_chooses_the_series(chosen: str, expected: list[str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER", chosen)
    assert wanted.wanted_series() == expected
    monkeypatch.setenv("BROKER", "2.0")
    with pytest.raises(pytest.UsageError, match=r"BROKER=2\.0 is not one of 3\.10, 4\.3, all, any"):
        wanted.wanted_series()


def test_a_missing_broker_is_a_skip_on_a_laptop_and_a_failure_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("TARRY_ALLOW_MISSING_BROKER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="none here"):
        wanted.missing("none here")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"TARRY_ALLOW_MISSING_BROKER=4\.3 lets this one go"):
        wanted.missing("none here", "4.3")
    monkeypatch.setenv("TARRY_ALLOW_MISSING_BROKER", "4.3")
    with pytest.raises(pytest.skip.Exception, match="none here"):
        wanted.missing("none here", "4.3")
    with pytest.raises(pytest.fail.Exception, match="CI must run every broker"):
        wanted.missing("none here", "3.10")
    monkeypatch.setenv("TARRY_ALLOW_MISSING_BROKER", "all")
    with pytest.raises(pytest.skip.Exception, match="none here"):
        wanted.missing("none here")

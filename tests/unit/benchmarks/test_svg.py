from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from benchmarks.suite.svg import Bar, bars, figure


def lengths(text: str) -> list[float]:
    return [float(one) for one in re.findall(r'class="bar[^"]*" x="\d+" y="\d+" width="([\d.]+)"', text)]


def test_twice_the_value_is_twice_the_length() -> None:
    one, other = lengths(bars("t", "u", [Bar("a", 10, 10, 10), Bar("b", 20, 20, 20)]))
    assert other == pytest.approx(2 * one)


def test_on_a_logarithmic_scale_each_tenfold_is_as_long() -> None:
    one, ten, hundred = lengths(bars("t", "ms", [Bar("a", 1), Bar("b", 10), Bar("c", 100)], log=True))
    assert hundred - ten == pytest.approx(ten - one, abs=0.2)


def test_it_is_well_formed_whatever_the_names() -> None:
    text = bars("a <b> & c", 'u"', [Bar("<&>", 1, 0.5, 2), Bar("none", None, note="broke <here>")])
    assert ET.fromstring(text).tag.endswith("svg")  # noqa: S314 - our own text
    assert "broke &lt;here&gt;" in text


def test_one_bar_alone_and_none_at_all_can_be_drawn() -> None:
    assert lengths(bars("t", "u", [Bar("a", 5, 5, 5)], log=True))
    assert not lengths(bars("t", "u", [Bar("a", None)]))


@pytest.mark.parametrize(
    ("value", "expected"), [(12345.6, "12,346"), (99.94, "99.9"), (3.14159, "3.14"), (0.2249, "0.22"), (0, "0")]
)
def test_figures_have_as_many_digits_as_mean_something(value: float, expected: str) -> None:
    assert figure(value) == expected

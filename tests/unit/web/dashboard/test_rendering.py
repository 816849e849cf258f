from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from tarry.web.dashboard import charts
from tarry.web.dashboard.rendering import LONGEST, ago, make_environment, query, when
from tarry.web.dashboard.retries import SHOWN_BYTES, shown_body

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)


def render(source: str, **values: object) -> str:
    return make_environment().from_string(source).render(**values)


def test_text_is_escaped_for_html_and_for_the_eye() -> None:
    shown = render("{{ text }}", text="<b>\u202egpj.exe\x00\x1b[2J\n</b>")
    assert shown == "&lt;b&gt;\\u202egpj.exe\\x00\\x1b[2J\\x0a&lt;/b&gt;"


def test_filters_and_macros_cannot_bring_raw_text_back() -> None:
    source = "{% macro m(x) %}<i>{{ x }}</i>{% endmacro %}{{ m(text|truncate(50, true)) }}{{ text|lines }}"
    shown = render(source, text="<script>\u2067")
    assert shown == "<i>&lt;script&gt;\\u2067</i>&lt;script&gt;\\u2067"


def test_a_short_name_is_not_broken_into_lines() -> None:
    assert render("{{ name|whole }}", name="mails.<b>\u202e") == '<span class="whole">mails.&lt;b&gt;\\u202e</span>'
    assert render("{{ name|whole }}", name="w" * 33) == "w" * 33


def test_a_form_field_keeps_the_exact_text() -> None:
    assert render('<input value="{{ name|exact }}">', name='a"\u202e<b') == '<input value="a&#34;\u202e&lt;b">'


def test_long_text_is_cut_with_its_length() -> None:
    shown = render("{{ text }}", text="w" * 1_000_000)
    assert len(shown) < LONGEST + 100
    assert "(1,000,000 characters)" in shown


def test_a_name_that_is_not_set_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("{{ missing }}")
    with pytest.raises(UndefinedError):
        render("{% if missing %}{% endif %}")


def test_every_template_compiles() -> None:
    environment = make_environment()
    assert len([environment.get_template(name) for name in environment.list_templates()]) > 10


def test_no_template_has_inline_styles_or_scripts() -> None:
    environment = make_environment()
    assert environment.loader is not None
    for name in environment.list_templates():
        source = environment.loader.get_source(environment, name)[0]
        for forbidden in (" style=", "<style", "onclick", "javascript:", "|safe", "http://", "https://"):
            assert forbidden not in source, (name, forbidden)
        assert source.count("<script") == source.count('<script src="/static/'), name


def test_every_form_that_acts_has_the_key_of_the_session() -> None:
    environment = make_environment()
    assert environment.loader is not None
    for name in environment.list_templates():
        source = environment.loader.get_source(environment, name)[0]
        assert source.count('method="post"') == source.count("{{ forms.key() }}"), name


@pytest.mark.parametrize(
    ("moment", "text"),
    [(NOW + timedelta(minutes=3), "in 3m"), (NOW - timedelta(hours=2), "2h ago"), (NOW, "0s ago"), (None, "–")],
)
def test_times_are_shown_from_now(moment: datetime | None, text: str) -> None:
    assert ago(moment, NOW) == text


def test_times_are_shown_in_utc() -> None:
    assert when(NOW) == '<time datetime="2030-01-31T12:00:00.000+00:00">2030-01-31 12:00:00</time>'


def test_a_query_leaves_out_what_is_not_set() -> None:
    assert query({"queue": "a&b", "owner": None, "state": ""}) == "queue=a%26b"


def test_a_body_in_json_is_indented() -> None:
    assert shown_body(b'{"a":[1]}').text == '{\n  "a": [\n    1\n  ]\n}'
    assert shown_body(b"hello").kind == "text"


def test_a_body_in_deep_json_is_shown_as_text() -> None:
    assert shown_body(b"[" * 200_000).kind == "text"


def test_a_binary_body_is_shown_in_hexadecimal() -> None:
    shown = shown_body(b"\xff\x00AB")
    assert (shown.kind, shown.text) == ("binary", "000000  ff 00 41 42" + " " * 38 + "..AB")
    assert shown_body(b"\xff" * (SHOWN_BYTES + 1)).text.endswith("… 16,385 bytes in all")


def test_a_chart_has_a_bar_for_each_number_that_is_not_zero() -> None:
    drawn = charts.bars([0, 5, 0, 10], "Returns", "now", "later")
    assert isinstance(drawn, Markup)
    assert drawn.count("<rect") == 2
    assert "Returns: 15 in all, at most 10 a minute" in drawn
    assert charts.bars([0, 0], "Returns", "now", "later").count("<rect") == 0


def test_a_stacked_chart_has_two_parts_where_both_numbers_are_not_zero() -> None:
    drawn = charts.stacked([(0, 0), (3, 1), (4, 0)], "Outcomes", "a", "b", each="a day", words=("good", "bad"))
    assert (drawn.count('class="bar"'), drawn.count('class="bar bad"')) == (2, 1)
    assert "Outcomes: 7 good, 1 bad, at most 4 a day" in drawn
    assert "<title>3 good, 1 bad</title>" in drawn


def test_a_line_has_a_gap_where_nothing_is_known() -> None:
    drawn = charts.lines([[50, 100, None, 0]], "Rate", "a", "b", "c", top=100)
    first, alone = (part.partition('"')[0] for part in drawn.split('points="')[1:])
    assert len(first.split()) == 2
    assert alone.split() == ["487.5,90.0", "562.5,90.0"]
    assert charts.lines([[None], []], "Rate", "a", "b", "c").count("<polyline") == 0


@pytest.mark.parametrize("values", [[], [None], [0.0], [100.0, None, 12.5], [0.0] * 400])
def test_a_line_of_rates_stays_within_its_picture(values: list[float | None]) -> None:
    drawn = charts.rate_line(values, "x")
    points = [pair.split(",") for part in drawn.split('points="')[1:] for pair in part.partition('"')[0].split()]
    assert len(drawn.split("<polyline")) == 1 + len(charts._runs(values))
    assert all(0 <= float(x) <= charts.SPARK_WIDTH and 0 <= float(y) <= charts.SPARK_HEIGHT for x, y in points)


@pytest.mark.parametrize("after", [[], [0], [1], [500, 1_000], [1_000, 365 * 86_400_000]])
def test_a_schedule_stays_within_its_picture(after: list[int]) -> None:
    drawn = charts.schedule(after, max(after, default=0))
    marks = [float(part.partition('"')[0]) for part in drawn.split('cx="')[1:]]
    assert len(marks) == len(after)
    assert all(0 <= x <= charts.WIDTH for x in marks)

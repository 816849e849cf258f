"""The section on advice of the page of policies."""

from __future__ import annotations

from datetime import UTC, datetime

from tarry.analytics.advise import Advice, AdviceKind, PolicyChange
from tarry.operations.advice import PolicyAdvice
from tarry.web.dashboard.rendering import make_environment

NOW = datetime(2030, 1, 31, tzinfo=UTC)
RULE = {"type": "<script>", "reason": "no", "class": "final"}
CHANGE = PolicyChange("orders", {"errors": []}, {"errors": [RULE]})
ADVICE = Advice(
    AdviceKind.USELESS_RETRIES,
    "orders",
    "0 of 412 retries after <script> succeeded: make it final",
    ["120 messages or more, on 5 days"],
    *(412, 0, 120, 5),
    change=CHANGE,
    toml=CHANGE.toml(),
)


def rendered(advice: PolicyAdvice | str | None) -> str:
    template = make_environment().get_template("policies.html")
    return "".join(template.blocks["main"](template.new_context({"policies": [], "advice": advice})))


def test_advice_shows_the_change_line_by_line_and_inert() -> None:
    page = rendered(PolicyAdvice(NOW, NOW, 5_000, [ADVICE], ["Steps are not counted yet."]))

    assert "[[policy]]\nname = &#34;orders&#34;\nerrors = [\n    { type = &#34;&lt;script&gt;&#34;" in page
    assert "0 of 412 retries after &lt;script&gt; succeeded" in page
    assert "From 5,000 retries since" in page
    assert "Steps are not counted yet." in page


def test_advice_may_be_none_or_not_readable_or_not_for_the_caller() -> None:
    assert "Nothing to advise." in rendered(PolicyAdvice(NOW, NOW, 0, [], []))
    assert "It could not be read: Postgres is away" in rendered("Postgres is away")
    assert "Advice" not in rendered(None)

from __future__ import annotations

from dataclasses import replace

import pytest

from tarry.errors import TopologyError, TopologyMismatchError
from tarry.topology.live import Live
from tarry.topology.objects import Binding, Exchange, Queue
from tarry.topology.retire import SETTLING_SECONDS, Settling, drainable, reasons_to_keep, unused_levels
from tests.unit.topology import examples

EXPECTED = examples.expected()
STANDING = examples.live(EXPECTED.blueprint)
RETIRED = Queue("retry.delay.7s", STANDING.queues["retry.delay.8s"].arguments)
WITH_RETIRED = examples.with_queue(STANDING, RETIRED)


def test_a_tier_that_no_policy_uses_can_be_drained() -> None:
    assert drainable(EXPECTED, WITH_RETIRED, "retry.delay.7s") == RETIRED


def test_a_tier_that_differs_from_the_files_can_be_drained_to_make_room() -> None:
    live = examples.with_argument(STANDING, "retry.delay.8s", "x-message-ttl", 7_000)

    assert drainable(EXPECTED, live, "retry.delay.8s").ttl_ms == 7_000


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("retry.delay.8s", "in use"),
        ("retry.audit", "not a tier"),
        ("orders", "not a tier"),
        ("retry.delay.9s", "no queue"),
    ],
)
def test_everything_else_is_refused(name: str, why: str) -> None:
    with pytest.raises(TopologyError, match=why):
        drainable(EXPECTED, WITH_RETIRED, name)


@pytest.mark.parametrize("target", [None, "elsewhere", "retry.gone"])
def test_a_tier_that_does_not_lead_home_is_not_drained(target: str | None) -> None:
    live = examples.with_argument(WITH_RETIRED, "retry.delay.7s", "x-dead-letter-exchange", target)

    with pytest.raises(TopologyMismatchError, match="does not lead back"):
        drainable(EXPECTED, live, "retry.delay.7s")


def test_prune_keeps_what_is_bound_or_has_messages() -> None:
    def reason(live: Live) -> str | None:
        return reasons_to_keep(EXPECTED, live)["retry.delay.7s"]

    bound = examples.with_binding(WITH_RETIRED, Binding("retry.delay", "~in:7s", "retry.delay.7s"))
    assert reason(WITH_RETIRED) is None
    assert reason(bound) == "still bound to retry.delay: tarry topology drain retry.delay.7s"
    assert (
        reason(replace(WITH_RETIRED, depths={"retry.delay.7s": 2}))
        == "still holds 2 messages, which leave when they expire"
    )


def test_a_level_goes_only_when_nothing_leads_to_it_any_more() -> None:
    level = Exchange("retry.ladder.9", "direct")
    unused = replace(STANDING, exchanges={**STANDING.exchanges, level.name: level})
    used = examples.with_argument(
        examples.with_queue(unused, RETIRED), RETIRED.name, "x-dead-letter-exchange", level.name
    )

    assert unused_levels(EXPECTED, unused) == ["retry.ladder.9"]
    assert unused_levels(EXPECTED, used) == []


def test_a_queue_is_empty_when_it_was_seen_so_for_long_enough() -> None:
    settling = Settling()

    assert not settling.observe(0, now=0)
    assert not settling.observe(0, now=SETTLING_SECONDS - 1)
    assert settling.observe(0, now=SETTLING_SECONDS)


def test_one_message_seen_starts_the_wait_anew() -> None:
    settling = Settling()
    settling.observe(0, now=0)
    settling.observe(1, now=5)

    assert not settling.observe(0, now=SETTLING_SECONDS)
    assert settling.observe(0, now=2 * SETTLING_SECONDS)

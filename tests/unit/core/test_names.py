from __future__ import annotations

import hashlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tarry.core.durations import format_duration
from tarry.core.names import (
    AUTOMATIC,
    LONGEST_NAME,
    Check,
    Destination,
    Gate,
    GateKind,
    Names,
    ParsedName,
    digit_key,
    enter_key,
    enter_ladder_key,
    event_key,
    holder_of_label,
    id_key,
    is_check_key,
    is_gate_key,
    skip_key,
)

HOSTILE = (
    "#",
    "*.orders",
    "a.b.c",
    "delay.8s",
    "retry.delay.8s",
    "ladder.0.1s",
    "else",
    "exchange:x",
    ".",
    "\n",
    "ü" * 60,
)
LANES = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,30}", fullmatch=True)
installations = st.sampled_from([Names(), Names("shop.", "shop.scheduled", "shop-review"), Names("a.delay.", "q", "r")])
destinations = st.builds(
    Destination,
    st.sampled_from(["queue", "exchange"]),
    st.one_of(st.sampled_from(HOSTILE), st.text(min_size=1, max_size=255)),
)


def test_every_name_starts_with_the_prefix() -> None:
    names = Names("shop.", "shop.scheduled", "shop-review")
    assert (names.intake, names.delay, names.review) == ("shop.intake", "shop.delay", "shop.review")
    assert names.tier(8_000) == "shop.delay.8s"
    assert names.ladder_queue(0, 375) == "shop.ladder.0.375ms"
    assert names.relay_queue(Destination("queue", "orders")) == "shop.relay.orders"
    assert names.held_queue(Destination("exchange", "events")) == "shop.held.exchange:events"


@pytest.mark.parametrize(
    ("key", "written"),
    [
        (enter_key(60_000), "~in:1m"),
        (digit_key(0, 3), "~0:3"),
        (skip_key(6, 2), "~6>2"),
        (skip_key(6, None), "~6>end"),
        (id_key("24e9476b-f4f5-5044-8227-4c112216f4bc", 2), "~id:24e9476b-f4f5-5044-8227-4c112216f4bc:2"),
        (Destination("queue", "orders.new").key, "~to:orders.new"),
        (Destination("exchange", "events.50%").key, "~via:events%2E50%25"),
        (Gate("policy", "invoices").key, "~policy:invoices"),
        (Gate("job-type", "pdf.50%").key, "~type:pdf%2E50%25"),
        (AUTOMATIC.key, "~auto"),
    ],
)
def test_keys(key: str, written: str) -> None:
    assert key == written


def test_a_name_too_long_for_a_key_is_hashed() -> None:
    key = Destination("queue", "q" * 255).key
    assert key == "~to#db6dd231025487e7f400902bdcdf5e16fd0077678ee25395eabef285eed44224"


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("retry.anything", True),
        ("amq.gen-1", True),
        ("", True),
        ("manual-review.pending", True),
        ("orders", False),
        ("my-retry.queue", False),
    ],
)
def test_tarrys_and_the_brokers_own_names_are_no_destinations(name: str, ours: bool) -> None:  # noqa: FBT001 - a table
    assert Names().is_ours(name) is ours


def test_a_name_that_leaves_no_room_has_no_relay() -> None:
    assert Destination("queue", "q" * 240).can_have_relay
    assert not Destination("queue", "q" * 241).can_have_relay


@given(installations, st.integers(min_value=1, max_value=10**12))
def test_the_name_of_a_tier_can_be_parsed(names: Names, ms: int) -> None:
    assert names.parse(names.tier(ms)) == ParsedName("tier", delay=format_duration(ms))
    assert names.is_waiting_queue(names.tier(ms))


@given(installations, st.integers(min_value=0, max_value=11), st.integers(min_value=1, max_value=10**12))
def test_the_name_of_a_ladder_queue_can_be_parsed(names: Names, level: int, ms: int) -> None:
    queue = names.ladder_queue(level, ms)
    assert names.parse(queue) == ParsedName("ladder", delay=format_duration(ms), level=level)
    assert names.is_waiting_queue(queue)
    assert not names.is_ladder_exchange(queue)
    assert names.is_ladder_exchange(names.ladder(level))


@given(installations, destinations)
def test_the_names_of_a_relay_and_a_held_queue_can_be_parsed(names: Names, destination: Destination) -> None:
    relay, held = names.relay_queue(destination), names.held_queue(destination)
    assume(len(relay) <= LONGEST_NAME)
    assert names.parse(relay) == ParsedName("relay", label=destination.label)
    assert names.parse(held) == ParsedName("held", label=destination.label)
    assert {names.destination_label(relay), names.destination_label(held)} == {destination.label}
    assert not names.is_waiting_queue(relay)
    assert not names.is_waiting_queue(held)


@given(installations, LANES, st.integers(0, 11), st.integers(1, 10**12), destinations)
def test_the_names_of_a_lane_can_be_parsed(
    names: Names, lane: str, level: int, ms: int, destination: Destination
) -> None:
    delay = format_duration(ms)
    queues = {
        names.tier(ms, lane): ParsedName("tier", delay=delay, lane=lane),
        names.ladder_queue(level, ms, lane): ParsedName("ladder", delay=delay, level=level, lane=lane),
        names.relay_of(lane): ParsedName("relay", lane=lane),
    }
    if names.has_relay_queue(destination, lane) and len(names.relay_queue(destination, lane)) <= LONGEST_NAME:
        queues[names.relay_queue(destination, lane)] = ParsedName("relay", label=destination.label, lane=lane)
    for queue, parsed in queues.items():
        assert names.parse(queue) == parsed
        assert names.lane_of(queue) == lane
        assert names.is_waiting_queue(queue) == (parsed.kind != "relay")
        assert names.is_ours(queue)
        assert names.is_taken(queue)
    for exchange in (names.ladder(level, lane), names.relay_of(lane), names.relay_else_of(lane)):
        assert names.lane_of_exchange(exchange) == lane
        assert not names.is_ladder_exchange(exchange)


@given(installations, destinations, st.integers(0, 11), st.integers(1, 10**12))
def test_the_names_of_other_queues_have_no_lane(names: Names, destination: Destination, level: int, ms: int) -> None:
    """Whatever a destination or a policy is called."""
    others = [names.relay_queue(destination), names.held_queue(destination), names.check_queue(destination.name, ms)]
    others += [names.held_queue(Gate(kind, destination.name)) for kind in ("policy", "job-type")]
    others += [names.tier(ms), names.ladder_queue(level, ms), names.relay, names.lanes_cancelled]
    assert [queue for queue in others if names.lane_of(queue) is not None] == []
    exchanges = [names.ladder(level), names.relay, names.relay_else, names.lanes_cancelled, names.delay]
    assert [exchange for exchange in exchanges if names.lane_of_exchange(exchange) is not None] == []


@given(LANES, LANES, st.integers(1, 10**12))
def test_the_keys_of_a_lane_lead_into_that_lane_only(lane: str, other: str, ms: int) -> None:
    names = Names()
    keys = {enter_key(ms, lane), enter_ladder_key(lane)}
    assert {names.lane_of_key(key) for key in keys} == {lane}
    assert [names.lane_of_key(key) for key in (enter_key(ms), enter_ladder_key(), "~to:~in~x:8s")] == [None] * 3
    assert lane == other or keys.isdisjoint({enter_key(ms, other), enter_ladder_key(other)})


def test_each_ladder_has_one_name_in_metrics() -> None:
    assert [Names().whole_ladder(lane) for lane in (None, "critical")] == ["retry.ladder", "retry.ladder~critical"]


def test_a_destination_has_no_relay_in_a_lane_where_the_name_would_be_too_long() -> None:
    names, lane = Names(), "critical"
    room = LONGEST_NAME - len(names.stem("relay", lane))
    assert names.has_relay_queue(Destination("queue", "q" * room), lane)
    assert not names.has_relay_queue(Destination("queue", "q" * (room + 1)), lane)
    assert names.has_relay_queue(Destination("queue", "q" * (room + 1)))


@given(destinations)
def test_a_label_says_which_destination_it_is(destination: Destination) -> None:
    assume(destination.kind == "exchange" or not destination.name.startswith("exchange:"))
    assert Destination.of_label(destination.label) == destination


@given(installations, st.text(alphabet="0123456789abcdef", min_size=1))
def test_the_name_of_a_probe_can_be_parsed(names: Names, token: str) -> None:
    assert names.parse(names.probe_queue(token)) == ParsedName("probe", token=token)
    assert names.parse(names.probe_result_queue(token)) == ParsedName("probe", token=f"{token}.spy")


@given(installations, st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True), st.integers(1, 86_400_000))
def test_the_name_of_a_check_queue_can_be_parsed(names: Names, policy: str, wait_ms: int) -> None:
    found = names.parse(names.check_queue(policy, wait_ms))
    assert found == ParsedName("check", policy=policy, wait=format_duration(wait_ms))
    assert not names.is_waiting_queue(names.check_queue(policy, wait_ms))
    key = Check(policy, wait_ms).key
    assert is_check_key(key)
    assert "." not in key
    assert not is_gate_key(key)


@given(installations, st.text(max_size=300))
def test_a_name_that_can_be_parsed_is_tarrys(names: Names, queue: str) -> None:
    assert names.parse(queue) is None or names.is_ours(queue)


def test_each_fixed_queue_has_its_kind() -> None:
    names = Names("shop.", "requests", "shop-review")
    kinds = {
        "requests": ParsedName("scheduled"),
        "shop-review": ParsedName("review"),
        "shop.audit": ParsedName("audit"),
        "shop.cancelled": ParsedName("cancelled"),
        "shop.unroutable": ParsedName("unroutable"),
        "shop.relay": ParsedName("relay"),
    }
    assert {queue: names.parse(queue) for queue in kinds} == kinds
    assert names.destination_label("shop.relay") is None


@pytest.mark.parametrize(
    "queue",
    [
        "",
        "orders",
        "retry",
        "retry.",
        "retry.delay",
        "retry.delay.",
        "retry.delay.8",
        "retry.delay.8s.",
        "retry.delay.8s\n",
        "retry.delay.1h30m",
        "retry.delay.٨s",
        "retry.delay.mine",
        "retry.delay.b.delay.5s",
        "retry.ladder",
        "retry.ladder.0",
        "retry.ladder.x.1s",
        "retry.ladder.0.1s.1s",
        "retry.delay~critical",
        "retry.delay~critical.",
        "retry.delay~critical.soon",
        "retry.delay~Critical.8s",
        "retry.delay~.8s",
        "retry.ladder~critical.1s",
        "retry.relay~critical.",
        "retry.relay~-.orders",
        "retry.gate~critical.8s",
        "retry.check.orders",
        "retry.check.1m.",
        "retry.intake",
        "my-retry.delay.8s",
        "retry.relay." + "q" * 256,
    ],
)
def test_a_name_that_tarry_would_not_give_a_queue_is_not_parsed(queue: str) -> None:
    assert Names().parse(queue) is None


@pytest.mark.parametrize(
    ("exchange", "is_level"),
    [("retry.ladder.0", True), ("retry.ladder.11", True), ("retry.ladder.0.1s", False), ("retry.ladder.x", False)],
)
def test_a_level_of_the_ladder_is_recognised(exchange: str, is_level: bool) -> None:  # noqa: FBT001 - a table
    assert Names().is_ladder_exchange(exchange) is is_level


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("retry.audit", True),
        ("retry.relay", True),
        ("retry.delay.anything", True),
        ("retry.held.orders", True),
        ("retry.delay~anything", True),
        ("retry.relay~critical", True),
        ("retry.scheduled", False),
        ("requests", False),
    ],
)
def test_the_request_queue_must_not_have_the_name_of_another(name: str, taken: bool) -> None:  # noqa: FBT001 - a table
    assert Names().is_taken(name) is taken


@given(installations, st.sampled_from(["policy", "job-type"]), st.one_of(st.sampled_from(HOSTILE), st.text()))
def test_gate_keys_are_one_word_and_name_a_queue_of_their_own(names: Names, kind: GateKind, name: str) -> None:
    gate = Gate(kind, name)
    queue = names.held_queue(gate)
    assert "." not in gate.key
    assert is_gate_key(gate.key)
    assert len(gate.key.encode()) <= len(queue.encode()) <= LONGEST_NAME
    assert names.parse(queue) == ParsedName("gate", label=gate.label)
    assert holder_of_label(gate.label) == gate or "#" in gate.key[:8]


def test_a_long_job_type_is_hashed_into_a_key_that_no_short_one_has() -> None:
    long = Gate("job-type", "x" * 65_000)
    assert long.key == f"~type#{hashlib.sha256(b'x' * 65_000).hexdigest()}"
    assert Gate("job-type", f"#{long.key.partition('#')[2]}").key != long.key


def test_the_key_of_an_event_keeps_the_dots_of_the_queue_only() -> None:
    assert event_key("scheduled", "gold.eu", "orders.eu") == "scheduled.gold%2Eeu.orders.eu"
    assert event_key("paused", None, None) == "paused.-.-"


@given(st.text(min_size=1, max_size=255), st.text(min_size=1, max_size=255))
def test_the_key_of_an_event_always_fits_and_differs_by_queue(one: str, other: str) -> None:
    assert len(event_key("in_review", "p" * 63, one).encode()) <= LONGEST_NAME
    assert (event_key("in_review", "p" * 63, one) == event_key("in_review", "p" * 63, other)) == (one == other)

"""The eligibility check against a real HTTP server: what it asks, what it makes of each answer, and of none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import table
from tarry.contract.message import Acceptance, Request
from tarry.contract.request import parse
from tarry.core.decide import Rulebook
from tarry.core.eligibility import FIRST_REST_S, LARGEST_ANSWER, MOST_ASKED
from tarry.core.ladder import Ladder
from tarry.core.names import Names
from tarry.core.policy import Policy
from tarry.router.eligibility import EligibilityCheck, header_value
from tests.support.eligibility import Endpoint, eligibility_endpoint
from tests.unit.contract.wire import named, rejected


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with eligibility_endpoint() as made:
        yield made


def policy(name: str = "notify", queue: str = "*", **rule: object) -> Policy:
    given = {"url_env": "DEVICES", "key": "device_id", "timeout": "30s"} | rule
    about = {"name": name, "match": {"queue": queue}, "schedule": ["2s"], "max_retries": 2, "eligibility": given}
    return Policy.model_validate(about | {"errors": [{"type": "Final*", "class": "final"}]})


def plain(name: str) -> Policy:
    return Policy.model_validate({"name": name, "schedule": ["2s"], "max_retries": 2})


def rules(*policies: Policy) -> Rulebook:
    return Rulebook(policies, Ladder(), frozenset({2_000}))


def request(device: object, tag: int = 1, queue: str = "orders", **headers: Any) -> Request:
    about = table({"device_id": device} | headers) if device is not None else b""
    delivery: Delivery = rejected(queue, about, message_id=b"m-%d" % tag)._replace(tag=tag)
    found = parse(delivery, Acceptance(Names()), lambda: "")
    assert isinstance(found, Request)
    return found


@dataclass
class Asker:
    """A check with a clock of its own, and what it counted."""

    environment: dict[str, str]
    now: float = 1_000.0
    requests: list[tuple[str, str, int]] = field(default_factory=list)
    unknown: list[tuple[str, str, int]] = field(default_factory=list)

    def run(self, use: Callable[[EligibilityCheck], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            check = EligibilityCheck(
                lambda *counted: self.requests.append(counted),
                lambda *counted: self.unknown.append(counted),
                self.environment,
                lambda: self.now,
            )
            try:
                return await use(check)
            finally:
                await check.close()

        return asyncio.run(run())

    def ask(self, given: Rulebook, *requests: Request) -> Mapping[int, str]:
        found: Mapping[int, str] = self.run(lambda check: check(requests, given))
        return found


@pytest.fixture
def asker(endpoint: Endpoint) -> Asker:
    return Asker({"DEVICES": endpoint.url})


def test_a_check_asks_once_about_the_distinct_values_of_a_batch(endpoint: Endpoint, asker: Asker) -> None:
    endpoint.inactive = {"d-2"}
    found = asker.ask(rules(policy()), *(request(f"d-{tag % 3}", tag) for tag in range(9)))
    assert found == {2: "device d-2 is inactive", 5: "device d-2 is inactive", 8: "device d-2 is inactive"}
    assert endpoint.asked == [{"policy": "notify", "key": "device_id", "values": ["d-0", "d-1", "d-2"]}]
    assert asker.requests == [("notify", "answered", 1)]
    assert asker.unknown == []


def test_a_check_asks_the_endpoint_of_each_policy(endpoint: Endpoint, asker: Asker) -> None:
    endpoint.inactive = {"d-1"}
    given = rules(policy("a", "a.*"), policy("b", "b.*", key="owner"), plain("c"))
    found = asker.ask(
        given,
        request("d-1", 1, "a.push"),
        request("d-1", 2, "b.push", owner="d-1"),
        request("d-1", 3, "b.push"),
        request("d-1", 4, "c.push"),
    )
    assert sorted(found) == [1, 2]
    assert sorted((one["policy"], one["key"]) for one in endpoint.asked) == [("a", "device_id"), ("b", "owner")]


def test_a_check_asks_about_no_message_that_it_cannot_know(endpoint: Endpoint, asker: Asker) -> None:
    """Without the header, with a value that is neither text nor a number, or with a final error."""
    odd = [None, "", 1.5, True, ["d-1"], {"d": 1}, "x" * 256]
    assert asker.ask(rules(policy()), *(request(value, tag) for tag, value in enumerate(odd))) == {}
    final = request("d-1")._replace(failure=request("d-1").failure._replace(error_type="FinalError"))
    assert asker.ask(rules(policy()), final) == {}
    assert endpoint.asked == []


def test_a_check_sends_numbers_as_text(endpoint: Endpoint, asker: Asker) -> None:
    endpoint.inactive = {"17"}
    assert sorted(asker.ask(rules(policy()), request(17, 1), request("17", 2), request(18, 3))) == [1, 2]
    assert endpoint.values == ["17", "18"]


def test_a_header_given_twice_counts_as_the_consumer_sees_it() -> None:
    twice = rejected("orders", named("device_id", b"S\0\0\0\1a"), named("device_id", b"S\0\0\0\1b"), message_id=b"m")
    found = parse(twice, Acceptance(Names()), lambda: "")
    assert isinstance(found, Request)
    assert header_value(found, "device_id") == "b"


def test_a_check_asks_a_large_batch_in_parts(endpoint: Endpoint, asker: Asker) -> None:
    endpoint.inactive = {"d-0", f"d-{MOST_ASKED}"}
    found = asker.ask(rules(policy()), *(request(f"d-{tag}", tag) for tag in range(MOST_ASKED + 1)))
    assert sorted(found) == [0, MOST_ASKED]
    assert sorted(len(one["values"]) for one in endpoint.asked) == [1, MOST_ASKED]


def test_a_check_is_off_while_its_variable_is_empty(endpoint: Endpoint) -> None:
    endpoint.inactive = {"d-1"}
    assert Asker({}).ask(rules(policy(on_error="skip")), request("d-1")) == {}
    assert endpoint.asked == []


def test_a_check_remembers_answers_for_their_time(endpoint: Endpoint, asker: Asker) -> None:
    endpoint.inactive = {"d-1"}
    given = rules(policy(cache="30s"))

    async def three(check: EligibilityCheck) -> None:
        assert sorted(await check([request("d-1", 1), request("d-2", 2)], given)) == [1]
        endpoint.inactive = {"d-2"}
        asker.now += 29
        assert sorted(await check([request("d-1", 3), request("d-2", 4), request("d-3", 5)], given)) == [3]
        asker.now += 1
        assert sorted(await check([request("d-1", 6), request("d-2", 7)], given)) == [7]
        changed = rules(policy(cache="31s"))
        assert sorted(await check([request("d-1", 8)], changed)) == []

    asker.run(three)
    assert [one["values"] for one in endpoint.asked] == [["d-1", "d-2"], ["d-3"], ["d-1", "d-2"], ["d-1"]]


BROKEN: dict[str, dict[str, Any]] = {
    "500": {"status": 500},
    "redirect": {"status": 307},
    "not found": {"status": 404},
    "no json": {"body": b"<html>"},
    "not utf-8": {"body": b"\xff\xfe"},
    "other json": {"body": b'{"active": ["d-1"]}'},
    "empty": {"body": b""},
    "deep": {"body": b"[" * 100_000},
    "too large": {"body": b'{"skip": {}, "x": "' + b"x" * LARGEST_ANSWER + b'"}'},
    "hangs": {"hangs": True},
    "hangs up": {"hangs_up": 2},
}


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("on_error", ["allow", "skip"])
def test_a_broken_endpoint_follows_on_error(how: str, on_error: str, endpoint: Endpoint, asker: Asker) -> None:
    for name, value in BROKEN[how].items():
        setattr(endpoint, name, value)
    with capture_logs() as logs:
        timeout = "300ms" if endpoint.hangs else "30s"
        found = asker.ask(rules(policy(on_error=on_error, timeout=timeout)), request("d-1", 1), request("d-1", 2))
    assert sorted(found) == ([1, 2] if on_error == "skip" else [])
    assert all("no answer about its eligibility" in reason for reason in found.values())
    assert asker.requests == [("notify", "failed", 1)]
    assert asker.unknown == [("notify", on_error, 2)]
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("eligibility is not known", "warning")
    assert (line["policy"], line["endpoint"], line["on_error"]) == ("notify", endpoint.url, on_error)
    assert endpoint.hangs or set(endpoint.paths) == {"/eligible"}, "a redirect is not followed"


def test_an_endpoint_that_is_not_there_follows_on_error(asker: Asker) -> None:
    asker.environment["DEVICES"] = "http://127.0.0.1:9/"
    assert asker.ask(rules(policy()), request("d-1")) == {}
    assert sorted(asker.ask(rules(policy(on_error="skip")), request("d-1"))) == [1]


def test_a_connection_that_was_just_closed_is_no_error(endpoint: Endpoint, asker: Asker) -> None:
    """A server may close a connection that is kept open just when the next request is sent."""
    endpoint.inactive, endpoint.hangs_up = {"d-1"}, 1
    assert sorted(asker.ask(rules(policy(on_error="skip")), request("d-1", 1), request("d-2", 2))) == [1]
    assert asker.requests == [("notify", "answered", 1)]


def test_a_broken_endpoint_is_no_trouble_once_its_policy_is_gone(endpoint: Endpoint, asker: Asker) -> None:
    """A reload of the policies: nothing asks it any more."""
    given = rules(policy("a", "a.*"), policy("b", "b.*"))

    async def outage(check: EligibilityCheck) -> list[int]:
        endpoint.status = 503
        await check([request("d-1", 1, "a.push"), request("d-1", 2, "b.push")], given)
        seen = [len(check.troubles)]
        for left in (given.policies, given.policies[1:], ()):
            check.use(left)
            seen.append(len(check.troubles))
        return seen

    with capture_logs():
        assert asker.run(outage) == [2, 2, 1, 0]


def test_a_broken_endpoint_is_left_alone_for_a_moment(endpoint: Endpoint, asker: Asker) -> None:
    """An outage is logged once; what is known stays known; then it is asked again."""
    given = rules(policy(on_error="skip"))

    async def outage(check: EligibilityCheck) -> list[str]:
        assert await check([request("known", 1)], given) == {}
        endpoint.status = 503
        assert sorted(await check([request("d-1", 1)], given)) == [1]
        assert "does not answer" in check.troubles[0]
        asked = len(endpoint.asked)
        assert sorted(await check([request("d-1", 1), request("known", 2), request("d-2", 3)], given)) == [1, 3]
        assert len(endpoint.asked) == asked
        asker.now += FIRST_REST_S
        assert sorted(await check([request("d-1", 1)], given)) == [1]
        assert len(endpoint.asked) == asked + 1
        endpoint.status = 200
        asker.now += 2 * FIRST_REST_S
        assert await check([request("d-1", 1)], given) == {}
        return check.troubles

    with capture_logs() as logs:
        assert asker.run(outage) == []
    assert [line["event"] for line in logs] == ["eligibility is not known", "eligibility is known again"]


def test_a_part_of_a_batch_without_an_answer_does_not_hide_the_rest(endpoint: Endpoint, asker: Asker) -> None:
    endpoint.inactive, endpoint.hangs_up = {f"d-{number}" for number in range(MOST_ASKED + 1)}, 0
    requests = [request(f"d-{tag}", tag) for tag in range(MOST_ASKED + 1)]
    endpoint.body = None
    answer = endpoint.answer

    def fail_the_small_one(values: list[str]) -> bytes:
        return b"?" if len(values) == 1 else answer(values)

    endpoint.answer = fail_the_small_one  # type: ignore[method-assign]
    assert sorted(asker.ask(rules(policy()), *requests)) == list(range(MOST_ASKED))
    assert sorted(asker.requests) == [("notify", "answered", 1), ("notify", "failed", 1)]
    assert asker.unknown == [("notify", "allow", 1)]

"""Explains what the router would do with one delivery, decided at both ends of the jitter, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tarry.amqp.delivery import Delivery
from tarry.contract.message import Acceptance, Probe, Refused, Request
from tarry.contract.request import parse
from tarry.core.budgets import NO_CAPS, Caps
from tarry.core.decide import Failure, Review, Schedule, decide
from tarry.core.durations import humanise
from tarry.core.names import Names
from tarry.core.policy import ErrorClass, Policy
from tarry.core.urls import split_url
from tarry.router.eligibility import header_value
from tarry.topology.model import Topology

ALMOST_ONE = 1 - 2**-53
NO_ID = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the router would do with one message, and why."""

    failure: Failure | None
    form: str | None
    policy: str | None
    policy_why: str
    error_class: str | None
    class_why: str
    earliest: Schedule | None
    latest: Schedule | None
    delay_why: str
    window_why: str
    """How the policy's windows moved the due time; empty if they did not."""
    review: str | None
    """The reason, if the message would go to review."""
    returns_to: str | None
    return_priority: int | None
    """The AMQP priority that the message would return with; None if it has none."""
    priority_why: str
    eligibility: str
    """What the policy's endpoint would be asked; empty if it has none."""
    question: Question | None
    """The same, to ask it; None if nothing would be asked."""
    request: Request | None = None
    """The message as it was read."""


class Question(NamedTuple):
    """What an eligibility endpoint is asked about one message."""

    policy: Policy
    url: str
    value: str


def explain(
    delivery: Delivery, topology: Topology, now_ms: int, environment: Mapping[str, str], caps: Caps = NO_CAPS
) -> Explanation:
    """Decides as `tarry serve` would, except for what only the audit knows (whether the request is a duplicate, what is
    used of budgets) and what only an eligibility endpoint knows.
    """
    accept = Acceptance(topology.broker_names, topology.acceptable, topology.failures)
    item = parse(delivery, accept, lambda: NO_ID)
    if isinstance(item, Probe):
        return _refused("a probe of `tarry attach`: it is removed from the queue and not retried")
    return _refused(item.reason) if isinstance(item, Refused) else _decided(item, topology, now_ms, environment, caps)


def _refused(reason: str) -> Explanation:
    return Explanation(None, None, None, "", None, "", None, None, "", "", reason, None, None, "", "", None)


def _decided(
    request: Request, topology: Topology, now_ms: int, environment: Mapping[str, str], caps: Caps
) -> Explanation:
    rules, failure = topology.rules, request.failure
    first, last = (decide(failure, rules, now_ms, draw, caps) for draw in (0.0, ALMOST_ONE))
    policy = first.policy
    eligibility, question = "", None
    if isinstance(first, Schedule):
        eligibility, question = _eligibility(request, first, topology.broker_names, environment)
    return Explanation(
        failure=failure,
        form=request.form,
        policy=policy.name if policy else None,
        policy_why=_why_policy(policy, topology),
        error_class=first.error_class,
        class_why=_why_class(failure, policy),
        earliest=first if isinstance(first, Schedule) else None,
        latest=last if isinstance(last, Schedule) else None,
        delay_why=_why_delay(failure, first, now_ms) if isinstance(first, Schedule) else "",
        window_why=_why_window(last) if isinstance(last, Schedule) else "",
        review=first.reason if isinstance(first, Review) else None,
        returns_to=_home(request, first) if isinstance(first, Schedule) else None,
        return_priority=_priority(request, first) if isinstance(first, Schedule) else None,
        priority_why=_why_priority(request, first) if isinstance(first, Schedule) else "",
        eligibility=eligibility,
        question=question,
        request=request,
    )


def _why_policy(policy: Policy | None, topology: Topology) -> str:
    if policy is None:
        return f"none of {len(topology.policies)} matches"
    place = [one.name for one in topology.policies].index(policy.name) + 1
    parts = policy.match.model_dump(exclude_none=True)
    matched = ", ".join(f"{name} = {glob!r}" for name, glob in parts.items())
    return f"the first of {len(topology.policies)} that matches ({matched}), number {place}"


def _why_class(failure: Failure, policy: Policy | None) -> str:
    if failure.error_class is not None:
        return "the request says so"
    rule = policy.rule_for(failure.error_type, failure.error_reason) if policy else None
    if policy is None or rule is None:
        return "no rule of the policy matches, so the error is retryable"
    return f"rule {policy.errors.index(rule) + 1} of the policy matches: type {rule.type!r}, reason {rule.reason!r}"


def _why_delay(failure: Failure, decision: Schedule, now_ms: int) -> str:
    policy = decision.policy
    base = policy.delay(failure.retry_count)
    asked = max(failure.retry_after_ms or 0, (failure.next_retry_at_ms or 0) - now_ms)
    if asked > 0 and decision.retry_count == failure.retry_count:
        why = f"the request asks for {humanise(asked)}, and a rate limit with a delay uses no attempt"
    elif asked > base:
        why = f"the request asks for {humanise(asked)}, which is more than the policy's {humanise(base)}"
    else:
        why = f"{humanise(base)} is the policy's delay before retry {failure.retry_count + 1}"
    if decision.error_class is ErrorClass.RATE_LIMITED and asked <= 0:
        why += "; a rate limit without a delay is treated like any other error"
    jitter = policy.longest_jitter(max(asked, base))
    return f"{why}; up to {humanise(jitter)} of jitter is added" if jitter else why


def _why_window(decision: Schedule) -> str:
    if decision.moved_from_ms is None:
        return ""
    policy, before = decision.policy, decision.moved_from_ms
    closed = next(window for window in policy.windows if not window.is_open(before))
    spread = max(window.spread for window in policy.windows)
    added = f", plus up to {humanise(spread)} at random" if spread else ""
    return f"{closed.at(before)} is not in the window, {closed.describe()}; moved to the next opening{added}"


def _eligibility(
    request: Request, decision: Schedule, names: Names, environment: Mapping[str, str]
) -> tuple[str, Question | None]:
    policy, rule = decision.policy, decision.policy.eligibility
    if rule is None:
        return "", None
    queue = f" (check queue {names.check_queue(*policy.check)})" if policy.check is not None else ""
    url = rule.endpoint(environment)
    if not rule.has_endpoint:
        return rule.describe(environment) + queue, None
    if url is None or rule.key is None:
        return f"not asked: {rule.url_env} is not set", None
    value = header_value(request, rule.key)
    if value is None:
        return f"not asked: it has no header {rule.key!r} with a text or a whole number", None
    about = f"{split_url(url).place} is asked about {rule.key} = {value!r}{rule.moment}{queue}"
    return f"{about}; without an answer: {rule.on_error}", Question(policy, url, value)


def _home(request: Request, decision: Schedule) -> str:
    if decision.policy.return_to == "exchange" and request.origin.exchange:
        return f"exchange {request.origin.exchange}, key {request.origin.routing_key}"
    return f"queue {request.origin.queue}"


def _priority(request: Request, decision: Schedule) -> int | None:
    wanted = decision.policy.return_priority
    return request.priority if wanted is None else wanted


def _why_priority(request: Request, decision: Schedule) -> str:
    if decision.policy.return_priority is None:
        return "" if request.priority is None else "its own"
    own = "it has none of its own" if request.priority is None else f"its own is {request.priority}"
    return f"the policy's return_priority; {own}"

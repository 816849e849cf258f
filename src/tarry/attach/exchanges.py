"""Plans the attachment of an exchange, for policies that return messages through it (`return_to = "exchange"`). Pure.

A returning message carries tarry's routing keys as well as its own, and an exchange routes by all of them. Tarry's keys
are single words, so on a topic exchange only a binding made of one `*` and any number of `#` matches a message because
of tarry's key. (`#` alone matches every message anyway, and once, however many keys it has.)
"""

from __future__ import annotations

from collections.abc import Iterator

from tarry.attach.findings import AttachFinding, Level, note, refusal, warning
from tarry.attach.plan import AttachPlan, missing_parts
from tarry.attach.snapshot import BrokerSnapshot
from tarry.core.names import Destination
from tarry.topology.broker_policies import policy_for
from tarry.topology.objects import Binding, Blueprint, Exchange

ANYTHING = frozenset({"#"})


def plan_exchange(survey: BrokerSnapshot, name: str) -> AttachPlan:
    destination = Destination("exchange", name)
    remarks = tuple(_remarks(survey, name))
    if any(remark.level is Level.REFUSAL for remark in remarks):
        return AttachPlan(destination, Blueprint((), (), ()), remarks)
    return AttachPlan(destination, missing_parts(survey, destination), remarks)


def takes_single_words(key: str) -> bool:
    """Whether a topic binding matches any one-word key without matching every key: `*`, `#.*`, `*.#`, …"""
    words = key.split(".")
    return words.count("*") == 1 and set(words) <= {"*", "#"}


def _remarks(survey: BrokerSnapshot, name: str) -> Iterator[AttachFinding]:
    exchange = survey.live.exchanges.get(name)
    if survey.names.is_ours(name):
        yield refusal("it belongs to tarry or to the broker itself: only exchanges of your own can be attached")
    elif exchange is None:
        yield refusal("there is no such exchange in this vhost: declare it first")
    elif not exchange.durable:
        yield refusal("it is not durable: a broker restart would delete it while retries wait")
    else:
        yield from _type(exchange)
        yield from _wildcards(survey, name)
        yield from _nowhere(survey, exchange)


def _type(exchange: Exchange) -> Iterator[AttachFinding]:
    match exchange.type:
        case "topic" | "direct":
            yield note(
                "every queue whose binding matches a message's own key gets it again, not only the one it failed in"
            )
        case "fanout":
            yield warning(
                "it is a fanout: every queue bound to it gets each retry again, not only the one it failed in"
            )
        case "headers":
            yield warning("it is a headers exchange: every queue whose binding matches gets each retry again")
        case other:
            yield refusal(f'how an exchange of type {other!r} treats extra keys is not known: use return_to = "queue"')


def _wildcards(survey: BrokerSnapshot, start: str) -> Iterator[AttachFinding]:
    """Also checks exchanges bound to this one: they route by the same keys."""
    for binding in _reached(survey, start):
        source = survey.live.exchanges.get(binding.source)
        if source is not None and source.type == "topic" and takes_single_words(binding.key):
            yield refusal(
                f"the binding {binding} takes every one-word key, tarry's own too, so {binding.destination} would get "
                'each retry: bind it by real words, or use return_to = "queue"'
            )


def _reached(survey: BrokerSnapshot, start: str) -> Iterator[Binding]:
    seen, ahead = {start}, [start]
    while ahead:
        for binding in survey.live.bindings_from(ahead.pop()):
            yield binding
            if binding.destination_type == "exchange" and binding.destination not in seen:
                seen.add(binding.destination)
                ahead.append(binding.destination)


def _nowhere(survey: BrokerSnapshot, exchange: Exchange) -> Iterator[AttachFinding]:
    """After `deliver`, a message that matches no binding is dropped, unless the user's exchange has an alternate."""
    policy = policy_for(exchange, survey.policies)
    if exchange.alternate or (policy and "alternate-exchange" in policy.definition):
        return
    bindings = survey.live.bindings_from(exchange.name)
    if exchange.type == "fanout" and bindings:
        return
    if exchange.type == "topic" and any(set(binding.key.split(".")) == ANYTHING for binding in bindings):
        return
    yield warning(
        "it has no alternate exchange: a retry whose key matches no binding any more is silently lost there. "
        f"Give it one, for instance {survey.names.unroutable!r}, which tarry reads"
    )

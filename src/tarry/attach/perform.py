"""Attaching: plan, prove, change, look again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pika.adapters.blocking_connection import BlockingChannel

from tarry.attach.exchanges import plan_exchange
from tarry.attach.listing import State, attachment
from tarry.attach.merge import STRATEGY, Options
from tarry.attach.own_policy import fallback_name, unconfirmed
from tarry.attach.plan import AttachPlan, live_policy, plan_queue
from tarry.attach.probe import Twin, prove, sweep
from tarry.attach.select import select
from tarry.attach.survey import Survey, read_survey, require_topology
from tarry.broker.address import Address
from tarry.broker.declare import channel
from tarry.broker.management import Management
from tarry.broker.signals import uninterrupted
from tarry.errors import BrokerError
from tarry.topology.apply import declare
from tarry.topology.model import Topology
from tarry.topology.policies import BrokerPolicy
from tarry.topology.rights import deploy_rights

PATIENCE_S = 5.0
"""Another attach of the same queue may be between its two writes when we look."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the user wants attached, and how."""

    queues: Sequence[str] = ()
    """Names and globs."""
    exchanges: Sequence[str] = ()
    options: Options = field(default_factory=Options)
    probe: bool = True


@dataclass(slots=True)
class Progress:
    """How far an attach has come, for whoever has to tell when it is stopped."""

    plans: list[AttachPlan] = field(default_factory=list)
    done: list[AttachPlan] = field(default_factory=list)

    @property
    def able(self) -> list[AttachPlan]:
        return [plan for plan in self.plans if not plan.refused]

    def is_left(self, plan: AttachPlan) -> bool:
        return not (plan.refused or plan.nothing_to_do or plan in self.done)


def make_plans(topology: Topology, survey: Survey, request: Request) -> list[AttachPlan]:
    """One for each queue and exchange that is meant; refusals are plans too."""
    require_topology(survey)
    queues = select(request.queues, survey.queues, survey.names)
    exchanges = select(request.exchanges, survey.live.exchanges, survey.names, "exchange")
    return [
        *(plan_queue(survey, name, request.options, topology.failures, topology.destinations) for name in queues),
        *(plan_exchange(survey, name) for name in exchanges),
    ]


def attach(
    topology: Topology, address: Address, request: Request, progress: Progress | None = None
) -> list[AttachPlan]:
    """Attaches what is not refused and returns the plans it followed; raises if a proof fails, with nothing changed.

    Ctrl-C stops it between two queues: what was begun for one is finished.
    """
    management = Management(address)
    survey = read_survey(management, topology.broker_names)
    at = progress or Progress()
    at.plans = make_plans(topology, survey, request)
    for plan in at.able:
        _spare_the_buffer(survey, plan)
    if at.able:
        sweep(management, survey.policies)
        with channel(address, "attach", deploy_rights(topology)) as open_channel:
            if request.probe:
                for twin in twins(at.able):
                    prove(open_channel, management, survey.names, twin)
            for plan in at.able:
                with uninterrupted():
                    _carry_out(open_channel, management, plan)
                    at.done.append(plan)
        _look_again(management, survey, at.able)
    return at.plans


def _carry_out(open_channel: BlockingChannel, management: Management, plan: AttachPlan) -> None:
    """The way home first: from the policy on, rejects leave the queue."""
    declare(open_channel, plan.missing)
    if plan.policy is not None and plan.policy_changes:
        set_policy(management, unconfirmed(plan.policy))
        set_policy(management, plan.policy)
    if plan.fallback_changes:
        if plan.fallback is not None:
            set_policy(management, plan.fallback)
        else:
            management.delete_policy(fallback_name(plan.destination.name))
    open_channel.connection.process_data_events(0)  # heartbeats, where many queues need nothing but a policy


def twins(plans: Iterable[AttachPlan]) -> list[Twin]:
    """A proof for each kind of queue, not for each queue: a hundred alike are proven once."""
    pairs = ((plan.queue, plan.policy) for plan in plans)
    return list(dict.fromkeys(Twin.of(queue, policy) for queue, policy in pairs if queue and policy))


def set_policy(management: Management, policy: BrokerPolicy) -> None:
    management.set_policy(
        policy.name,
        pattern=policy.pattern,
        definition=dict(policy.definition),
        priority=policy.priority,
        apply_to=policy.apply_to,
    )


def _spare_the_buffer(survey: Survey, plan: AttachPlan) -> None:
    """A change away from at-least-once makes the broker drop the rejects that wait in the queue's buffer."""
    before = live_policy(survey, plan.destination.name)
    if plan.queue is None or plan.policy is None or before is None or not plan.queue.stuck:
        return
    if STRATEGY in before.definition and STRATEGY not in plan.policy.definition:
        raise BrokerError(
            f"queue {plan.queue.name}: {plan.queue.stuck} rejects wait in it for tarry to take them and would be "
            "dropped by this change of its policy: nothing was changed. Attach again when they are through."
        )


def _look_again(management: Management, before: Survey, plans: Iterable[AttachPlan]) -> None:
    """What was proven on the twin holds for the queue only if the broker applies the same policy to it."""
    deadline = time.monotonic() + PATIENCE_S
    while bad := _not_ok(read_survey(management, before.names), plans):
        if time.monotonic() > deadline:
            raise BrokerError("\n".join(["Attached, but the broker does not show it so:", *bad]))
        time.sleep(0.2)


def _not_ok(now: Survey, plans: Iterable[AttachPlan]) -> list[str]:
    states = [attachment(now, plan.destination) for plan in plans]
    return [
        f"{found.destination.name}: {found.state}: {found.detail}" for found in states if found.state is not State.OK
    ]

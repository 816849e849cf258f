"""Attaches queues and exchanges: plans, proves the plan on a twin queue, changes the broker, and checks the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pika.adapters.blocking_connection import BlockingChannel

from tarry.amqp.declare import channel
from tarry.amqp.management import Management, uninterrupted
from tarry.amqp.url import Address
from tarry.attach.exchanges import plan_exchange
from tarry.attach.listing import AttachmentState, attachment
from tarry.attach.merge import STRATEGY, MergeOptions
from tarry.attach.own_policy import fallback_name, unconfirmed
from tarry.attach.plan import AttachPlan, live_policy, plan_queue
from tarry.attach.probe import Twin, prove, sweep
from tarry.attach.snapshot import BrokerSnapshot, read_snapshot, require_topology, select
from tarry.errors import BrokerError
from tarry.topology.apply import declare
from tarry.topology.broker_policies import BrokerPolicy
from tarry.topology.model import Topology
from tarry.topology.rights import deploy_rights

PATIENCE_S = 5.0
"""How long to repeat the check: another attach of the same queue may be between its two policy writes."""


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """What the user wants to attach, and how."""

    queues: Sequence[str] = ()
    """Names and globs."""
    exchanges: Sequence[str] = ()
    options: MergeOptions = field(default_factory=MergeOptions)
    probe: bool = True


@dataclass(slots=True)
class AttachProgress:
    """How far an attach has come; the caller reports it if the attach is interrupted."""

    plans: list[AttachPlan] = field(default_factory=list)
    done: list[AttachPlan] = field(default_factory=list)
    on_step: Callable[[str, int, int], None] = lambda _what, _at, _total: None
    """Called with what is done next, the number of the same that are done, and their total."""

    @property
    def able(self) -> list[AttachPlan]:
        return [plan for plan in self.plans if not plan.refused]

    def is_left(self, plan: AttachPlan) -> bool:
        return not (plan.refused or plan.nothing_to_do or plan in self.done)


def make_plans(topology: Topology, survey: BrokerSnapshot, request: AttachRequest) -> list[AttachPlan]:
    """One plan for each selected queue and exchange; a refusal is also a plan."""
    require_topology(survey)
    queues = select(request.queues, survey.queues, survey.names)
    exchanges = select(request.exchanges, survey.live.exchanges, survey.names, "exchange")
    rules = (topology.failures, topology.destinations)
    return [
        *(plan_queue(survey, name, request.options, *rules, policies=topology.policies) for name in queues),
        *(plan_exchange(survey, name) for name in exchanges),
    ]


def attach(
    topology: Topology, address: Address, request: AttachRequest, progress: AttachProgress | None = None
) -> list[AttachPlan]:
    """Attaches everything that is not refused and returns the plans; raises if a proof fails, with nothing changed.

    Ctrl-C stops it between two queues: a queue that was begun is finished.
    """
    management = Management(address)
    survey = read_snapshot(management, topology.broker_names)
    at = progress or AttachProgress()
    at.plans = make_plans(topology, survey, request)
    for plan in at.able:
        _spare_the_buffer(survey, plan)
    if at.able:
        sweep(management, survey.policies)
        with channel(address, "attach", deploy_rights(topology)) as open_channel:
            if request.probe:
                kinds = twins(at.able)
                for number, twin in enumerate(kinds):
                    at.on_step("testing", number, len(kinds))
                    prove(open_channel, management, survey.names, twin)
            for number, plan in enumerate(at.able):
                at.on_step("attaching", number, len(at.able))
                with uninterrupted():
                    _carry_out(open_channel, management, plan)
                    at.done.append(plan)
        _look_again(management, survey, at.able)
    return at.plans


def _carry_out(open_channel: BlockingChannel, management: Management, plan: AttachPlan) -> None:
    """Creates the return path first: as soon as the policy is set, rejects leave the queue."""
    declare(open_channel, plan.missing)
    if plan.policy is not None and plan.policy_changes:
        set_policy(management, unconfirmed(plan.policy))
        set_policy(management, plan.policy)
    if plan.fallback_changes:
        if plan.fallback is not None:
            set_policy(management, plan.fallback)
        else:
            management.delete_policy(fallback_name(plan.destination.name))
    open_channel.connection.process_data_events(0)  # heartbeats, needed when many queues need only a policy


def twins(plans: Iterable[AttachPlan]) -> list[Twin]:
    """One proof for each kind of queue, not for each queue: a hundred equal queues are proven once."""
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


def _spare_the_buffer(survey: BrokerSnapshot, plan: AttachPlan) -> None:
    """Raises if the change would lose rejects: without at-least-once, the broker drops those in the queue's buffer."""
    before = live_policy(survey, plan.destination.name)
    if plan.queue is None or plan.policy is None or before is None or not plan.queue.stuck:
        return
    if STRATEGY in before.definition and STRATEGY not in plan.policy.definition:
        raise BrokerError(
            f"queue {plan.queue.name}: {plan.queue.stuck} rejects wait in it for tarry to accept them and would be "
            "dropped by this change of its policy: nothing was changed. Attach again when tarry has accepted them."
        )


def _look_again(management: Management, before: BrokerSnapshot, plans: Iterable[AttachPlan]) -> None:
    """The proof on the twin holds for the queue only if the broker applies the same policy to it."""
    deadline = time.monotonic() + PATIENCE_S
    while bad := _not_ok(read_snapshot(management, before.names), plans):
        if time.monotonic() > deadline:
            raise BrokerError("\n".join(["Attached, but the broker reports something else:", *bad]))
        time.sleep(0.2)


def _not_ok(now: BrokerSnapshot, plans: Iterable[AttachPlan]) -> list[str]:
    states = [attachment(now, plan.destination) for plan in plans]
    return [
        f"{found.destination.name}: {found.state}: {found.detail}"
        for found in states
        if found.state is not AttachmentState.OK
    ]

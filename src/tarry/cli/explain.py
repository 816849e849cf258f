"""`tarry explain`: a dry run of the decision. Nothing is published, nothing is recorded."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tarry.broker.address import Address
from tarry.cli.explain_message import as_rejected, from_flags, from_json
from tarry.cli.explain_peek import peek
from tarry.cli.explain_view import explanation_json, print_explanation, print_schedule, schedule_json
from tarry.cli.explained import explain
from tarry.cli.options import (
    DEFAULT_URL,
    AsJson,
    CaFile,
    ManagementUrl,
    TopologyFolder,
    Url,
    address_from,
    topology_from,
)
from tarry.cli.output import line, note, print_json
from tarry.cli.topology_view import print_warnings
from tarry.contract import headers as h
from tarry.contract.message import Delivery
from tarry.core.decide import Failure
from tarry.core.durations import parse_duration
from tarry.core.policy import Policy
from tarry.errors import SettingsError
from tarry.topology.checks.files import check_policies
from tarry.topology.model import Topology
from tarry.topology.record import described


def register(app: typer.Typer) -> None:
    app.command("explain")(explain_command)


def explain_command(
    *,
    queue: Annotated[str | None, typer.Option(help="The queue that the message failed in.")] = None,
    count: Annotated[int | None, typer.Option(help="Retries already spent.")] = None,
    error_type: Annotated[str | None, typer.Option(help="As in the header `error_type`.")] = None,
    error_reason: Annotated[str | None, typer.Option(help="As in the header `error_reason`.")] = None,
    error_class: Annotated[str | None, typer.Option("--class", help="final, retryable or rate_limited.")] = None,
    retry_after: Annotated[str | None, typer.Option(metavar="DURATION", help="The wait asked for, as in 30s.")] = None,
    priority: Annotated[str | None, typer.Option(help="As in the header `priority`.")] = None,
    job_type: Annotated[str | None, typer.Option(help="As in the header `job_type`.")] = None,
    max_retries: Annotated[int | None, typer.Option(help="Retries that the request asks for.")] = None,
    message: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A message as JSON, as the management UI shows it; - is stdin."),
    ] = None,
    peek_queue: Annotated[
        str | None,
        typer.Option(
            "--peek",
            metavar="QUEUE",
            help="The first message of a live queue. It is taken and put back, and so marked as redelivered.",
        ),
    ] = None,
    schedule: Annotated[
        bool, typer.Option("--schedule", help="The whole schedule of the policy for --queue, or of all policies.")
    ] = False,
    policy: Annotated[str | None, typer.Option(help="With --schedule: the policy of this name.")] = None,
    folder: TopologyFolder = None,
    url: Url = DEFAULT_URL,
    management_url: ManagementUrl = None,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Say what would become of a failed message, and why: policy, class, delay, tiers, moment. Nothing is changed.

    Describe it with flags, paste it as JSON, or read it from a live queue. With --queue beside --message, the question
    is what a reject in that queue would do.
    """
    topology = topology_from(folder)
    if not as_json:
        note(f"Topology: {described(topology)}")
        print_warnings(check_policies(topology))
    if schedule or policy:
        _print_schedules(
            _chosen(topology, Failure(queue or "", priority=priority, job_type=job_type), policy), topology, as_json
        )
        return
    if message is not None:
        asked = _pasted(message, queue, topology)
    elif peek_queue is not None:
        asked = _peeked(peek_queue, topology, address_from(url, management_url, ca_file))
    elif queue is not None:
        said = {h.RETRY_COUNT: count, h.ERROR_TYPE: error_type, h.ERROR_REASON: error_reason, h.PRIORITY: priority}
        said |= {h.JOB_TYPE: job_type, h.MAX_RETRIES: max_retries, h.RETRY_AFTER: _milliseconds(retry_after)}
        said |= {h.ORIGINAL_QUEUE: queue, h.ERROR_CLASS: error_class}
        asked = [from_flags(topology.broker_names, said)]
    else:
        raise SettingsError("What shall be explained? Give --queue, --message, --peek or --schedule.")
    _answer(asked, topology, as_json)


def _milliseconds(duration: str | None) -> int | None:
    try:
        return None if duration is None else parse_duration(duration)
    except ValueError as error:
        raise SettingsError(f"--retry-after {error}") from None


def _pasted(file: str, queue: str | None, topology: Topology) -> list[Delivery]:
    found = from_json(file)
    return [as_rejected(one, queue, topology.broker_names) for one in found] if queue else found


def _peeked(queue: str, topology: Topology, address: Address) -> list[Delivery]:
    """A message in somebody's own queue is no request yet: the question is what a reject would do."""
    found = peek(address, queue)
    if found is None:
        raise SettingsError(f"The queue {queue!r} is empty: there is nothing to explain.")
    names = topology.broker_names
    return [found if names.is_ours(queue) else as_rejected(found, queue, names)]


def _answer(asked: list[Delivery], topology: Topology, as_json: bool) -> None:
    found = [explain(delivery, topology, time.time_ns() // 1_000_000) for delivery in asked]
    if as_json:
        answers = [explanation_json(one, topology) for one in found]
        print_json(answers[0] if len(answers) == 1 else answers)
        return
    for place, one in enumerate(found):
        if place:
            line("")
        print_explanation(one, topology)


def _chosen(topology: Topology, failure: Failure, name: str | None) -> tuple[Policy, ...]:
    """By name, else for the queue, else all; durations as the time scale makes them."""
    rules = topology.rules
    if name is not None:
        found = [policy for policy in rules.policies if policy.name == name]
        if not found:
            known = ", ".join(policy.name for policy in rules.policies)
            raise SettingsError(f"There is no policy {name!r}. Known: {known}.")
        return tuple(found)
    if not failure.queue:
        return rules.policies
    policy = rules.policy_for(failure)
    if policy is None:
        raise SettingsError(f"No policy matches queue {failure.queue!r}: its failures go to review.")
    return (policy,)


def _print_schedules(policies: tuple[Policy, ...], topology: Topology, as_json: bool) -> None:
    if as_json:
        print_json([schedule_json(policy) for policy in policies])
        return
    for policy in policies:
        print_schedule(policy, topology.names.review)

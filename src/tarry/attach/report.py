"""Attach plans and states as plain data, for `--json` and for tests. Pure."""

from __future__ import annotations

from typing import Any

from tarry.attach.detach import DetachPlan
from tarry.attach.findings import Level
from tarry.attach.listing import Attachment
from tarry.attach.plan import AttachPlan
from tarry.topology.broker_policies import BrokerPolicy


def status(plan: AttachPlan, *, dry_run: bool = False, left: bool = False) -> str:
    """`left` is True for a plan that an interrupted attach did not reach."""
    if plan.refused:
        return "refused"
    if left:
        return "not attached"
    if plan.nothing_to_do:
        return "unchanged"
    return "planned" if dry_run else "attached"


def attach_report(plan: AttachPlan, *, dry_run: bool = False, left: bool = False) -> dict[str, Any]:
    return {
        "name": plan.destination.name,
        "kind": plan.destination.kind,
        "status": status(plan, dry_run=dry_run, left=left),
        "policy": policy_report(plan.policy) if plan.policy else None,
        "policy_changes": plan.policy_changes,
        "fallback_policy": policy_report(plan.fallback) if plan.fallback else None,
        "fallback_policy_changes": plan.fallback_changes,
        "queues": [{"name": queue.name, "arguments": queue.arguments.as_dict()} for queue in plan.missing.queues],
        "bindings": [
            {"source": found.source, "key": found.key, "destination": found.destination, "to": found.destination_type}
            for found in plan.missing.bindings
        ],
        "refusals": plan.texts(Level.REFUSAL),
        "warnings": plan.texts(Level.WARNING),
        "notes": plan.texts(Level.NOTE),
    }


def policy_report(policy: BrokerPolicy) -> dict[str, Any]:
    """In the format of the management API."""
    return {
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "priority": policy.priority,
        "definition": dict(policy.definition),
    }


def state_report(found: Attachment) -> dict[str, Any]:
    return {
        "name": found.destination.name,
        "kind": found.destination.kind,
        "state": str(found.state),
        "detail": found.detail,
        "merged_with": found.base,
    }


def detach_status(plan: DetachPlan, *, dry_run: bool) -> str:
    if plan.nothing_to_do:
        return "unchanged"
    if not plan.parts:
        return "refused"
    return "planned" if dry_run else "detached"


def detach_report(plan: DetachPlan, *, dry_run: bool) -> dict[str, Any]:
    return {
        "name": plan.destination.name,
        "kind": plan.destination.kind,
        "status": detach_status(plan, dry_run=dry_run),
        "removed": [" ".join(part.split()) for part in plan.parts],
        "kept": list(plan.kept),
    }

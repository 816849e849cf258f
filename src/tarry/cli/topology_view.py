"""Output of the topology commands, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tarry.cli.output import PlainTable, line, print_table, table, warn
from tarry.core.durations import format_duration
from tarry.topology.findings import Finding
from tarry.topology.model import Topology
from tarry.topology.objects import Binding, Blueprint
from tarry.topology.plan import Plan, counted, explain_conflict, explain_details, way_to_migrate
from tarry.topology.record import ApplyRecord, TopologySource, described
from tarry.topology.show import review_step, steps

Json = dict[str, Any]
MOST_LINES = 12
"""Maximum lines of each kind in a plan; a first apply would fill several screens."""


def print_source(topology: Topology) -> None:
    """Names the folder, because it depends on where the command is run."""
    line(f"Topology: {described(topology)}")


def print_warnings(findings: Iterable[Finding]) -> None:
    for finding in findings:
        warn(str(finding))


def topology_json(topology: Topology) -> Json:
    return topology_source_json(TopologySource.of(topology))


def topology_source_json(source: TopologySource) -> Json:
    return {"folder": source.folder, "digest": source.digest}


def applied_json(record: ApplyRecord | None) -> Json | None:
    if record is None:
        return None
    at = record.at.isoformat() if record.at else None
    return {"folder": record.folder or None, "digest": record.digest, "host": record.host, "at": at}


def source_json(topology: Topology, applied: ApplyRecord | None, warnings: Iterable[Finding]) -> Json:
    """What every topology command reports about its files."""
    return {
        "topology": topology_json(topology),
        "applied": applied_json(applied),
        "warnings": [finding_json(warning) for warning in warnings],
    }


def blueprint_json(parts: Blueprint) -> Json:
    return {
        "exchanges": [{"name": part.name, **part.properties()} for part in parts.exchanges],
        "queues": [{"name": part.name, **part.properties()} for part in parts.queues],
        "bindings": bindings_json(parts.bindings),
    }


def bindings_json(bindings: Iterable[Binding]) -> list[Json]:
    return [_binding_json(binding) for binding in bindings]


def plan_json(topology: Topology, plan: Plan, depths: Mapping[str, int]) -> Json:
    names = topology.broker_names
    return {
        "missing": blueprint_json(plan.missing),
        "different": [
            {
                "kind": difference.wanted.kind,
                "name": difference.wanted.name,
                "details": {
                    key: {"live": live, "wanted": wanted} for key, (live, wanted) in difference.details.items()
                },
                "messages": difference.messages,
                "migrate": way_to_migrate(names, difference),
            }
            for difference in plan.different
        ],
        "conflicts": [
            {"wanted": _binding_json(conflict.wanted), "live": _binding_json(conflict.live)}
            for conflict in plan.conflicts
        ],
        "former": bindings_json(plan.former),
        "left_over": [
            {"kind": part.kind, "name": part.name, "messages": depths.get(part.name, 0)} for part in plan.left_over
        ],
    }


def print_plan(topology: Topology, plan: Plan, depths: Mapping[str, int]) -> None:
    missing = plan.missing
    for kind, names in (
        ("exchange", [exchange.name for exchange in missing.exchanges]),
        ("queue", [queue.name for queue in missing.queues]),
        ("binding", [str(binding) for binding in missing.bindings]),
    ):
        _print_missing(kind, names)
    for difference in plan.different:
        line(f"{difference.wanted.kind} {difference.wanted.name}: {explain_details(difference)}", "~", "bold yellow")
        line(f"to migrate: {way_to_migrate(topology.broker_names, difference)}", " ")
    for conflict in plan.conflicts:
        line(explain_conflict(conflict), "!", "bold red")
    for binding in plan.former:
        lane = topology.broker_names.lane_of_key(binding.key)
        why = "of an earlier version, replaced by the gates" if lane is None else f"no policy names lane {lane}"
        line(f"binding {binding}: {why}", "-", "bold magenta")
    for part in plan.left_over:
        line(f"{part.kind} {part.name}: left over, {counted(depths.get(part.name, 0), 'message')}", "-", "bold magenta")
    line(plan_summary(plan))


def plan_summary(plan: Plan) -> str:
    if plan.nothing_to_do:
        return "Nothing to do: the broker matches the topology."
    parts = [
        (len(plan.missing), "to declare (tarry topology apply)"),
        (len(plan.former), "to remove (tarry topology apply)"),
        (len(plan.different) + len(plan.conflicts), "different (see above)"),
        (len(plan.left_over), "left over (tarry topology drain, prune)"),
    ]
    return ", ".join(f"{number} {what}" for number, what in parts if number) + "."


def _print_missing(kind: str, names: list[str]) -> None:
    for name in names[:MOST_LINES]:
        line(f"{kind} {name}", "+", "bold green")
    if len(names) > MOST_LINES:
        line(f"and {counted(len(names) - MOST_LINES, f'more {kind}')} (--json lists them all)", "+", "bold green")


def finding_json(finding: Finding) -> Json:
    return {
        "level": finding.level,
        "check": finding.check,
        "things": list(finding.things),
        "problem": finding.problem,
        "mend": finding.mend,
    }


def print_findings(findings: Iterable[Finding]) -> None:
    for finding in findings:
        mark, style = ("✗", "bold red") if finding.level == "wrong" else ("·", "dim")
        line(f"{finding.subject}: {finding.problem} → {finding.mend}", mark, style)


def show_json(topology: Topology, depths: Mapping[str, int] | None) -> Json:
    return {
        "steps": [
            {
                "exchange": step.exchange,
                "key": step.key,
                "queue": step.queue,
                "waits": step.waits,
                "otherwise": step.otherwise,
                "meaning": step.meaning,
                "queues": [
                    {"name": name, "messages": None if depths is None else depths.get(name)} for name in step.queues
                ],
            }
            for step in (*steps(topology), review_step(topology))
        ]
    }


def print_show(topology: Topology, depths: Mapping[str, int] | None) -> None:
    """The path of a message step by step, then each tier of a policy."""
    way = table("Path of a message", "exchange", "key", "queue", "waits", "messages", "else", right=("messages",))
    for step in (*steps(topology), review_step(topology)):
        depth = _depth({*step.queues, *_like(step.queue, depths)}, depths) if step.after != "home" else ""
        way.add_row(step.exchange, step.key or "every message", step.queue, step.waits, depth, step.otherwise)
    print_table(way)
    names = topology.broker_names
    tiers = table("Tiers", "queue", "waits", "messages", "policies", right=("messages",))
    rules = topology.rules
    for lane, ms in [(name, ms) for name in (None, *rules.lanes) for ms in sorted(rules.tiers_of(name))]:
        users = [policy.name for policy in rules.policies if policy.lane == lane and ms in policy.tiers()]
        queue = names.tier(ms, lane)
        tiers.add_row(queue, format_duration(ms), _depth((queue,), depths), ", ".join(users))
    print_table(tiers)
    if rules.lanes:
        print_table(_lanes(topology, depths))


def _lanes(topology: Topology, depths: Mapping[str, int] | None) -> PlainTable:
    names, rules = topology.broker_names, topology.rules
    lanes = table("Lanes", "lane", "ladder", "relays", "messages", "policies", right=("messages",))
    for lane in rules.lanes:
        users = [policy.name for policy in rules.policies if policy.lane == lane]
        ladder, relay = names.whole_ladder(lane), names.relay_of(lane)
        inside = [name for name in depths or () if names.lane_of(name) == lane]
        lanes.add_row(lane, f"{ladder}.*", f"{relay}, {relay}.*", _depth(inside, depths), ", ".join(users))
    return lanes


def _like(pattern: str, depths: Mapping[str, int] | None) -> tuple[str, ...]:
    """Relays and held queues: one row with `<queue>` in its name stands for all of them."""
    stem, sign, _ = pattern.partition("<")
    return tuple(name for name in depths or () if sign and name.startswith(stem))


def _depth(names: Iterable[str], depths: Mapping[str, int] | None) -> str:
    return "" if depths is None else f"{sum(depths.get(name, 0) for name in names):,}"


def _binding_json(binding: Binding) -> Json:
    return {
        "source": binding.source,
        "key": binding.key,
        "destination": binding.destination,
        "destination_type": binding.destination_type,
    }

"""Compares the live broker with the files: a list of small checks over one snapshot, each a pure function."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tarry.amqp.management import Management
from tarry.amqp.url import Address
from tarry.topology.checks import broker, files, parts, policies, priorities
from tarry.topology.expected import Expected
from tarry.topology.findings import Finding
from tarry.topology.live import Live, read_live
from tarry.topology.model import Topology

Check = Callable[[Expected, Live], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    broker.check_version,
    broker.check_feature_flags,
    parts.check_missing,
    parts.check_arguments,
    parts.check_conflicts,
    parts.check_foreign_bindings,
    parts.check_relays,
    parts.check_ways_home,
    priorities.check_return_priorities,
    priorities.check_waiting_order,
    policies.check_policies,
    policies.check_operator_policies,
    broker.check_binding_count,
    parts.check_former,
    parts.check_left_over,
    files.check_files,
    files.check_applied,
    policies.check_unread,
)


def verify(topology: Topology, address: Address) -> list[Finding]:
    """Everything that is not as it should be. If there is no `wrong` finding, the broker is safe to use for retries."""
    return findings(Expected.of(topology, address.vhost), read_live(Management(address)))


def findings(expected: Expected, live: Live) -> list[Finding]:
    return [finding for check in CHECKS for finding in check(expected, live)]

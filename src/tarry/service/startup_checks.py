"""Start-up checks for a missing tier, an old broker or wrong permissions; each error names the command to run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tarry.amqp.declare import channel, refusal
from tarry.amqp.properties import Properties
from tarry.amqp.publisher import Message, Publisher
from tarry.amqp.url import Address
from tarry.core.names import NO_TIER, Names
from tarry.errors import BrokerError, TopologyMismatchError
from tarry.topology.apply import refuse_old
from tarry.topology.checks.files import FILE_CHECKS, check_policies
from tarry.topology.findings import Finding
from tarry.topology.model import Topology
from tarry.topology.rights import router_rights
from tarry.topology.verify import verify

log = structlog.get_logger()

ACCESS_REFUSED = 403
PATIENCE = 2.0
"""Seconds to wait for the probe."""


def check_broker(topology: Topology, address: Address) -> None:
    """Raises BrokerUnreachableError while there is no broker, and another BrokerError if the broker is unsuitable."""
    with channel(address, "router: start-up check", router_rights(topology)) as open_channel:
        _check_version(open_channel)
        try:
            log_warnings(check_topology(topology, address))
        except TopologyMismatchError:
            raise
        except BrokerError as error:
            log.warning("topology checked only in part", reason=str(error))
            _check_what_we_may_touch(open_channel, topology, address)
            log_warnings(check_policies(topology))


def check_topology(topology: Topology, address: Address) -> list[Finding]:
    """Checks through the management API, which sees everything. Returns the findings that do not stop a router.

    A missing layover queue does not: only delays that are longer than the ladder holds need it, and they go through the
    unroutable queue meanwhile, one leg after the other. Nor does a missing gate for checks or check queue: messages
    return without being asked about. Nor does the relay of a destination in a lane: the lane's shared one is used.
    """
    found = verify(topology, address)
    wrong = [one for one in found if one.level == "wrong" and not _is_dispensable(one, topology.broker_names)]
    if wrong:
        raise TopologyMismatchError("\n".join(map(str, wrong)))
    return found


def _is_dispensable(finding: Finding, names: Names) -> bool:
    """Whether the finding is that a part is missing which a router can do without, or a binding to one."""
    missing = finding.things[0]
    parts = (f"queue {names.layover}", f"exchange {names.check_gate}")
    if finding.check != "missing":
        return False
    queue = missing.rpartition("queue ")[2]
    found = names.parse(queue)
    in_lane = found is not None and found.kind == "relay" and found.lane is not None and found.label is not None
    return in_lane or missing.endswith(parts) or f"queue {names.stem('check')}" in missing


def log_warnings(findings: Iterable[Finding]) -> None:
    """Logs problems in the topology files, and missing parts; notes about the broker are left to `tarry topology
    verify`.
    """
    for finding in findings:
        if finding.check in FILE_CHECKS or finding.level == "wrong":
            log.warning("topology warning", subject=finding.subject, problem=finding.problem, mend=finding.mend)


async def check_way_out(publisher: Publisher, topology: Topology, address: Address) -> None:
    """Checks the permission to publish: a message for a tier that cannot exist is returned at once if it is granted.

    While the broker has an alarm nothing is returned; then the first request shows whether publishing is permitted.
    """
    probe = Message(topology.broker_names.delay, NO_TIER, Properties(), b"", NO_TIER)
    await asyncio.wait([asyncio.ensure_future(publisher.publish([probe]))], timeout=PATIENCE)
    if isinstance(publisher.link.error, ChannelClosedByBroker):
        raise refused(publisher.link.error, topology, address)


def refused(error: ChannelClosedByBroker, topology: Topology, address: Address) -> BrokerError | ChannelClosedByBroker:
    """A missing permission must be granted by an administrator: waiting does not help. Other errors may pass."""
    if error.reply_code != ACCESS_REFUSED:
        return error
    return refusal(address, error.reply_code, error.reply_text, router_rights(topology))


def _check_version(open_channel: BlockingChannel) -> None:
    properties = open_channel.connection._impl.server_properties  # type: ignore[attr-defined] # noqa: SLF001 - pika keeps it there
    text = str(properties.get("version", "")).partition("-")[0].partition("+")[0]
    numbers = [int(part) for part in text.split(".")[:3] if part.isdigit()]
    if numbers:
        refuse_old(tuple(numbers))


def _check_what_we_may_touch(open_channel: BlockingChannel, topology: Topology, address: Address) -> None:
    """Checks without the management API: the first and last queues and exchanges, which this user may access."""
    names = topology.broker_names
    for queue in (names.scheduled, names.audit, names.unroutable, names.review_queue):
        open_channel.queue_declare(queue, passive=True)
    for exchange in (names.delay, names.review, names.spool, names.deliver):
        open_channel.exchange_declare(exchange, passive=True)
    log.info("broker has the required queues and exchanges", broker=str(address))

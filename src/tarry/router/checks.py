"""Start-up checks that speak: a missing tier, an old broker, a wrong right, each with the command that mends it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tarry.broker.address import Address
from tarry.broker.declare import channel, refusal
from tarry.broker.publisher import Message, Publisher
from tarry.contract.properties import Properties
from tarry.errors import BrokerError, TopologyMismatchError
from tarry.topology.apply import refuse_old
from tarry.topology.checks.files import FILE_CHECKS, check_policies
from tarry.topology.findings import Finding
from tarry.topology.model import Topology
from tarry.topology.rights import router_rights
from tarry.topology.verify import verify

log = structlog.get_logger()

ACCESS_REFUSED = 403
NOWHERE = "~nowhere"
"""A key that no tier has."""

PATIENCE = 2.0
"""Seconds for the probe."""


def check_broker(topology: Topology, address: Address) -> None:
    """Raises BrokerUnreachableError while there is no broker, and another BrokerError if it will not do."""
    with channel(address, "router: start-up check", router_rights(topology)) as open_channel:
        _check_version(open_channel)
        try:
            log_warnings(check_topology(topology, address))
        except TopologyMismatchError:
            raise
        except BrokerError as error:
            log.warning("the topology is checked only in part", reason=str(error))
            _check_what_we_may_touch(open_channel, topology, address)
            log_warnings(check_policies(topology))


def check_topology(topology: Topology, address: Address) -> list[Finding]:
    """Through the management API, which sees everything. Returns what is worth knowing and does not stop a router."""
    found = verify(topology, address)
    wrong = [finding for finding in found if finding.level == "wrong"]
    if wrong:
        raise TopologyMismatchError("\n".join(map(str, wrong)))
    return found


def log_warnings(findings: Iterable[Finding]) -> None:
    """What is odd about the topology files; notes about the broker are for `tarry topology verify`."""
    for finding in findings:
        if finding.check in FILE_CHECKS:
            log.warning("topology warning", subject=finding.subject, problem=finding.problem, mend=finding.mend)


async def check_way_out(publisher: Publisher, topology: Topology, address: Address) -> None:
    """A message for a tier that there cannot be comes straight back, if we may publish at all.

    While the broker has an alarm nothing comes back; then the first request will tell.
    """
    probe = Message(topology.broker_names.delay, NOWHERE, Properties(), b"", NOWHERE)
    await asyncio.wait([asyncio.ensure_future(publisher.publish([probe]))], timeout=PATIENCE)
    if isinstance(publisher.link.error, ChannelClosedByBroker):
        raise refused(publisher.link.error, topology, address)


def refused(error: ChannelClosedByBroker, topology: Topology, address: Address) -> BrokerError | ChannelClosedByBroker:
    """A missing right is for somebody to give: waiting will not mend that. All else may."""
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
    """Without the management API: the ends of the way, which the broker lets this user look at."""
    names = topology.broker_names
    for queue in (names.scheduled, names.audit, names.unroutable, names.review_queue):
        open_channel.queue_declare(queue, passive=True)
    for exchange in (names.delay, names.review, names.spool, names.deliver):
        open_channel.exchange_declare(exchange, passive=True)
    log.info("the ends of the way are there", broker=str(address))

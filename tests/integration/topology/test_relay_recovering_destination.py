"""The broker offers messages of a relay again if their destination refused them. None is lost, on any series.

Before 3.13 a second offer forgets the keys of BCC, so those messages end in the unroutable queue, for the service to
send on; the others arrive. The broker waits three minutes between offers; here it is told to wait three seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from pika.adapters.blocking_connection import BlockingChannel

from tarry import embedded
from tests.integration.topology.installation import TopologyInstallation, drained
from tests.support.spaces import Vhost, make_vhost
from tests.support.waiting import wait_for

COUNT = 60
OFFER_AGAIN_MS = 3_000
KEEPS_ADDRESSES = (3, 13)


def on(node: embedded.Broker) -> Vhost:
    """A vhost whose dead-letter workers start with the short wait."""
    node.ctl("eval", f"application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, {OFFER_AGAIN_MS}).")
    return make_vhost(node.amqp_url, node.management_url, node.version)


def depth(opened: BlockingChannel, queue: str) -> int:
    return int(opened.queue_declare(queue, passive=True).method.message_count)


def test_none_is_lost_and_the_tap_has_seen_each_once(private_broker: Callable[..., embedded.Broker]) -> None:
    installation = TopologyInstallation(on(private_broker())).apply()
    with installation.open_channel() as opened:
        installation.attach(opened, "full", **{"x-max-length": 1, "x-overflow": "reject-publish"})
        for number in range(COUNT):
            installation.schedule(opened, "full", 125, b"%d.." % number)
        wait_for(lambda: depth(opened, "retry.audit") >= 32, what="the relay to have all its places taken")

        delivered: list[int] = []

        def complete() -> bool:
            """The destination works again, and takes whatever it is offered."""
            delivered.extend(one.number for one in drained(opened, "full", COUNT, deadline=0.5))
            return len(delivered) + depth(opened, "retry.unroutable") >= COUNT

        wait_for(complete, deadline=90, what="every message to be somewhere")
        unroutable = [one.number for one in drained(opened, "retry.unroutable", COUNT, deadline=1)]
        proofs = [one.number for one in drained(opened, "retry.audit", 2 * COUNT, deadline=1)]

    assert sorted([*delivered, *unroutable]) == list(range(COUNT))
    assert sorted(proofs) == list(range(COUNT))
    major, minor = installation.vhost.version.split(".")[:2]
    assert bool(unroutable) is ((int(major), int(minor)) < KEEPS_ADDRESSES)

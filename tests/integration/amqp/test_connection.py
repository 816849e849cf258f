"""A link is open when it says so; a wrong login, an empty port and a silent peer are told apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from tarry.amqp import connection as links
from tarry.amqp.connection import AmqpConnection
from tarry.amqp.url import Address
from tarry.errors import BrokerError, BrokerUnreachableError
from tests.support.proxy import Proxy
from tests.support.spaces import Vhost


def test_a_wrong_password_is_no_matter_of_waiting(vhost: Vhost) -> None:
    wrong = Address.parse(vhost.amqp_url.replace("guest:guest@", "guest:wrong-word@"))
    with pytest.raises(BrokerError, match="refused the login") as refusal:
        asyncio.run(AmqpConnection.open(wrong, "test"))
    assert not isinstance(refusal.value, BrokerUnreachableError)
    assert "wrong-word" not in str(refusal.value)


def test_a_vhost_that_is_not_there_is_named(vhost: Vhost) -> None:
    with pytest.raises(BrokerError, match="nowhere") as refusal:
        asyncio.run(AmqpConnection.open(Address.parse(vhost.amqp_url.replace(vhost.name, "nowhere")), "test"))
    assert not isinstance(refusal.value, BrokerUnreachableError)


def test_an_empty_port_may_have_a_broker_later(vhost: Vhost, proxy: Callable[[str], Proxy]) -> None:
    wire = proxy(vhost.amqp_url)
    wire.refuse()
    with pytest.raises(BrokerUnreachableError, match="No broker answers"):
        asyncio.run(AmqpConnection.open(Address.parse(vhost.through(wire.port)), "test"))


def test_a_peer_that_says_nothing_is_given_up(
    vhost: Vhost, proxy: Callable[[str], Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "OPEN_TIMEOUT", 1.0)
    wire = proxy(vhost.amqp_url)
    wire.blackhole()
    with pytest.raises(BrokerUnreachableError, match="does not answer"):
        asyncio.run(AmqpConnection.open(Address.parse(vhost.through(wire.port)), "test"))


def test_closing_does_not_wait_for_a_broker_that_is_gone(vhost: Vhost, proxy: Callable[[str], Proxy]) -> None:
    wire = proxy(vhost.amqp_url)

    async def close_in_the_dark() -> float:
        link = await AmqpConnection.open(Address.parse(vhost.through(wire.port)), "test")
        await asyncio.to_thread(wire.blackhole)
        started = asyncio.get_running_loop().time()
        await link.close()
        return asyncio.get_running_loop().time() - started

    assert asyncio.run(close_in_the_dark()) < 20


def test_a_frozen_process_knows_that_its_deliveries_may_be_lost(vhost: Vhost) -> None:
    async def freeze() -> tuple[bool, bool, str]:
        link = await AmqpConnection.open(Address.parse(f"{vhost.amqp_url}?heartbeat=1"), "test")
        before = link.given_up()
        time.sleep(links.GIVEN_UP + 0.5)  # noqa: ASYNC251  the whole process stands still, as after SIGSTOP
        after = link.given_up()
        await link.close()
        return before, after, link.closed.result()

    before, after, reason = asyncio.run(freeze())
    assert (before, after) == (False, True)
    assert "nothing was received" in reason

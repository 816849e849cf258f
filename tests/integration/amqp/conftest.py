"""A broker's address, and an event loop to speak to it in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tarry.amqp.url import Address
from tests.support.amqp import open_connection
from tests.support.spaces import Vhost


@pytest.fixture
def address(vhost: Vhost) -> Address:
    return Address.parse(vhost.amqp_url, management_url=vhost.management_url)


@pytest.fixture
def channel(vhost: Vhost) -> Iterator[BlockingChannel]:
    """Of an ordinary client."""
    with open_connection(vhost.amqp_url) as connection:
        yield connection.channel()

from __future__ import annotations

from concurrent.futures import Future
from typing import cast

import pytest

from tarry.amqp.connection import AmqpConnection
from tarry.amqp.url import Address
from tarry.errors import BrokerUnreachableError
from tarry.operations.review.queue_scan import ScanChannel


class LostConnection:
    is_open = False

    def __init__(self) -> None:
        self.closed: Future[str] = Future()
        self.closed.set_result("cut")


def test_scan_channel_reports_a_lost_connection_on_acknowledgement() -> None:
    link = cast("AmqpConnection", LostConnection())
    scan_channel = ScanChannel(link, "q", Address.parse("amqp://127.0.0.1"), lambda _: True)
    with pytest.raises(BrokerUnreachableError, match="ended: cut"):
        scan_channel.ack([1])

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tarry.embedded import management
from tarry.errors import EmbeddedError
from tests.support.processes import state_of
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry import embedded
    from tests.support.spaces import SharedBroker


def test_they_share_nothing(broker: SharedBroker, private_broker: Callable[..., embedded.Broker]) -> None:
    """And while the second is here: it can be paused, and reconfigured by lines of its own."""
    other = private_broker(extra_config=["channel_max = 77"])
    management.request(other.management_url, "vhosts/only-there", method="PUT", body={})
    assert "only-there" not in [vhost["name"] for vhost in broker.api("vhosts")]
    assert other.ctl("eval", "{ok, Max} = application:get_env(rabbit, channel_max), Max.").strip() == "77"
    with pytest.raises(EmbeddedError, match="rabbitmqctl no_such_command failed"):
        other.ctl("no_such_command")
    pid = other.pid
    assert pid is not None
    other.pause()
    wait_for(lambda: state_of(pid) == "T", what="the node to be paused")
    port = urlsplit(other.amqp_url).port or 0
    assert not management.serves(other.management_url, port)
    other.unpause()
    wait_for(lambda: management.serves(other.management_url, port), what="the node to answer again")
    assert broker.api("overview")["rabbitmq_version"] == other.version

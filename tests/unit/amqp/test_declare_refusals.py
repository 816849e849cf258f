"""The texts are those of real brokers: 4.x names the right that is missing, 3.x does not."""

from __future__ import annotations

import pytest
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, ConnectionClosedByBroker

from tarry.amqp.declare import Rights, connect, explained, refusal
from tarry.amqp.url import Address
from tarry.errors import BrokerError, BrokerUnreachableError, TopologyMismatchError

ADDRESS = Address.parse("amqp://mia:secret@host/a%20b")
RIGHTS = Rights("^mine$", ".*", "^$")


def test_a_missing_right_is_named_with_the_command_that_gives_it() -> None:
    text = "ACCESS_REFUSED - configure access to queue 'retry.audit' in vhost 'a b' refused for user 'mia'"

    assert str(refusal(ADDRESS, 403, text, RIGHTS)) == (
        "User 'mia' lacks `configure` on queue 'retry.audit' in vhost 'a b'. An administrator gives it with: "
        "rabbitmqctl set_permissions -p 'a b' mia '^mine$' '.*' '^$'"
    )


def test_an_older_broker_does_not_say_which_right_so_all_are_named() -> None:
    text = "ACCESS_REFUSED - access to exchange 'retry.delay' in vhost 'a b' refused for user 'mia'"

    assert "a right (`configure` to declare it" in str(refusal(ADDRESS, 403, text))


def test_other_refusals_keep_the_brokers_own_words() -> None:
    assert "operation not permitted" in str(refusal(ADDRESS, 403, "ACCESS_REFUSED - operation not permitted"))
    assert "queue 'x' in vhost" in str(refusal(ADDRESS, 404, "NOT_FOUND - no queue 'x' in vhost 'a b'"))
    assert "INTERNAL_ERROR" in str(refusal(ADDRESS, 541, "INTERNAL_ERROR"))


def test_a_queue_declared_otherwise_is_a_mismatch() -> None:
    text = "PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'retry.delay.8s'"

    assert isinstance(refusal(ADDRESS, 406, text), TopologyMismatchError)


@pytest.mark.parametrize(
    ("raised", "becomes"),
    [
        (ChannelClosedByBroker(406, "PRECONDITION_FAILED - x"), TopologyMismatchError),
        (ConnectionClosedByBroker(540, "NOT_IMPLEMENTED"), BrokerError),
        (AMQPConnectionError("gone"), BrokerUnreachableError),
    ],
)
def test_every_way_a_broker_says_no_becomes_one_of_our_errors(raised: Exception, becomes: type[Exception]) -> None:
    with pytest.raises(becomes), explained(ADDRESS):
        raise raised


def test_a_port_where_nobody_listens_is_named_with_the_reason() -> None:
    with pytest.raises(BrokerUnreachableError, match=r"amqp://guest:\*\*\*@127\.0\.0\.1:1/.*refused"):
        connect(Address.parse("amqp://guest:guest@127.0.0.1:1/"), "test")

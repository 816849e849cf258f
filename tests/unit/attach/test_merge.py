from __future__ import annotations

import pytest

from tarry.attach.findings import Level
from tarry.attach.merge import Merged, MergeOptions, Situation, merge
from tarry.attach.snapshot import UserQueue
from tarry.topology.broker_policies import BrokerPolicy
from tests.unit.attach.snapshots import a_policy, a_queue

NEW, OLD = (4, 3, 6), (3, 10, 8)


def merged(
    queue: UserQueue,
    base: BrokerPolicy | None = None,
    options: MergeOptions | None = None,
    *,
    operator: BrokerPolicy | None = None,
    version: tuple[int, ...] = NEW,
) -> Merged:
    return merge(Situation(queue, "retry.intake", version, base, operator), options or MergeOptions())


def said(result: Merged, level: Level) -> str:
    return "\n".join(remark.text for remark in result.remarks if remark.level is level)


def test_a_quorum_queue_without_a_policy_gets_all_of_ours() -> None:
    assert merged(a_queue()).definition == {
        "dead-letter-exchange": "retry.intake",
        "dead-letter-strategy": "at-least-once",
        "overflow": "reject-publish",
        "delivery-limit": 20,
    }


def test_a_classic_queue_gets_only_the_key_that_does_not_void_its_policy() -> None:
    assert merged(a_queue(kind="classic")).definition == {"dead-letter-exchange": "retry.intake"}


def test_the_users_keys_are_taken_over_and_told() -> None:
    result = merged(a_queue(kind="classic"), a_policy("team", queue_mode="lazy", max_length=5))
    assert result.definition == {"queue-mode": "lazy", "max-length": 5, "dead-letter-exchange": "retry.intake"}
    assert said(result, Level.NOTE) == "takes over max-length, queue-mode from policy 'team'"


def test_the_record_tells_our_keys_from_theirs() -> None:
    result = merged(a_queue(kind="classic"), a_policy("team", max_length=5))
    assert (result.record.base, result.record.own) == ("team", ("dead-letter-exchange",))


def test_dead_letters_that_go_elsewhere_are_not_taken_without_leave() -> None:
    result = merged(a_queue(), a_policy("team", dead_letter_exchange="graveyard"))
    assert "'graveyard'" in said(result, Level.REFUSAL)
    assert "--replace-dead-letter" in said(result, Level.REFUSAL)


def test_with_leave_they_are_taken_with_their_key_and_told() -> None:
    base = a_policy("team", dead_letter_exchange="graveyard", dead_letter_routing_key="dead")
    result = merged(a_queue(kind="classic"), base, MergeOptions(replace_dead_letter=True))
    assert result.definition == {"dead-letter-exchange": "retry.intake"}
    assert "no longer to 'graveyard'" in said(result, Level.NOTE)
    assert "dead-letter-routing-key 'dead'" in said(result, Level.WARNING)


def test_a_policy_that_leads_to_tarry_already_is_no_conflict() -> None:
    result = merged(a_queue(kind="classic"), a_policy("team", dead_letter_exchange="retry.intake"))
    assert not said(result, Level.REFUSAL)


@pytest.mark.parametrize(
    ("queue", "base", "operator", "reason"),
    [
        (a_queue(), a_policy(max_length=5), None, "length limit with overflow drop-head"),
        (a_queue(), a_policy(max_length_bytes=5, overflow="drop-head"), None, "length limit with overflow drop-head"),
        (a_queue(arguments={"x-max-length": 5}), None, None, "length limit with overflow drop-head"),
        (a_queue(), None, a_policy(max_length=5), "length limit with overflow drop-head"),
        (a_queue(arguments={"x-overflow": "drop-head"}), None, None, "fixed to drop-head"),
        (a_queue(), None, a_policy(overflow="drop-head"), "fixed to drop-head"),
        (a_queue(arguments={"x-dead-letter-strategy": "at-most-once"}), None, None, "dead-letter-strategy is at-most"),
        (a_queue(), a_policy(dead_letter_strategy="at-most-once"), None, "dead-letter-strategy is at-most-once"),
    ],
)
def test_at_least_once_is_left_out_with_a_warning_if_publishers_would_see(
    queue: UserQueue, base: BrokerPolicy | None, operator: BrokerPolicy | None, reason: str
) -> None:
    result = merged(queue, base, operator=operator)
    assert result.definition.get("dead-letter-strategy") in (None, "at-most-once")
    assert result.definition.get("overflow") in (None, "drop-head")
    assert reason in said(result, Level.WARNING)
    assert "at most once" in said(result, Level.WARNING)


def test_drop_head_without_a_limit_drops_nothing_so_it_may_change() -> None:
    result = merged(a_queue(), a_policy(overflow="drop-head"))
    assert result.definition["overflow"] == "reject-publish"
    assert "overflow" in result.record.own


def test_a_limit_with_reject_publish_allows_at_least_once() -> None:
    result = merged(a_queue(), a_policy(max_length=5, overflow="reject-publish"))
    assert result.definition["dead-letter-strategy"] == "at-least-once"
    assert "overflow" not in result.record.own


def test_arguments_that_say_the_same_are_not_said_again() -> None:
    queue = a_queue(arguments={"x-overflow": "reject-publish", "x-dead-letter-strategy": "at-least-once"})
    assert set(merged(queue).definition) == {"dead-letter-exchange", "delivery-limit"}


@pytest.mark.parametrize(
    ("queue", "base"),
    [(a_queue(), a_policy(delivery_limit=5)), (a_queue(arguments={"x-delivery-limit": 5}), None)],
)
def test_a_delivery_limit_that_is_there_stays(queue: UserQueue, base: BrokerPolicy | None) -> None:
    result = merged(queue, base, MergeOptions(delivery_limit=50))
    assert result.definition.get("delivery-limit") in (None, 5)
    assert "delivery-limit of 5 already" in said(result, Level.WARNING)


def test_an_unlimited_delivery_limit_is_warned_of() -> None:
    assert "no delivery limit" in said(merged(a_queue(arguments={"x-delivery-limit": -1})), Level.WARNING)


WISH = MergeOptions(consumer_timeout_ms=60_000)
BETWEEN = (4, 2, 0)


def test_a_consumer_timeout_is_set_where_the_broker_takes_it() -> None:
    assert merged(a_queue(), options=WISH).definition["consumer-timeout"] == 60_000
    for kind in ("quorum", "classic"):
        assert merged(a_queue(kind=kind), options=WISH, version=BETWEEN).definition["consumer-timeout"] == 60_000


def test_a_broker_that_takes_none_gets_none_and_says_where_to_set_it() -> None:
    result = merged(a_queue(), options=WISH, version=OLD)
    assert "consumer-timeout" not in result.definition
    assert "rabbitmq.conf" in said(result, Level.WARNING)


@pytest.mark.parametrize("options", [MergeOptions(), WISH])
def test_a_classic_queue_of_a_new_broker_never_gives_a_hung_message_back(options: MergeOptions) -> None:
    """The key would not be for its type."""
    result = merged(a_queue(kind="classic"), options=options)
    assert "consumer-timeout" not in result.definition
    assert "from 4.3 a classic queue has no consumer timeout" in said(result, Level.WARNING)
    assert ("consumer timeout not set" in said(result, Level.WARNING)) == (options is WISH)


@pytest.mark.parametrize(
    ("version", "options", "after"),
    [
        (NEW, WISH, "comes back after 1m; the broker then cancels that consumer"),
        (
            NEW,
            MergeOptions(),
            "comes back after consumer_timeout in rabbitmq.conf, by default 30 minutes; the broker then",
        ),
        (BETWEEN, WISH, "comes back after 1m, and up to a minute more; the broker then closes the channel"),
        (
            OLD,
            WISH,
            "comes back after consumer_timeout in rabbitmq.conf, by default 30 minutes, and up to a minute more",
        ),
    ],
)
def test_it_is_said_when_a_hung_message_comes_back(version: tuple[int, ...], options: MergeOptions, after: str) -> None:
    assert after in said(merged(a_queue(), options=options, version=version), Level.NOTE)


def test_a_consumer_timeout_that_is_there_stays() -> None:
    result = merged(a_queue(), a_policy(consumer_timeout=5_000), MergeOptions(consumer_timeout_ms=60_000))
    assert result.definition["consumer-timeout"] == 5_000
    assert "consumer-timeout of 5s already" in said(result, Level.WARNING)

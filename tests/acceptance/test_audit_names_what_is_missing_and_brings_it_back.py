"""A message taken out of a tier by hand: the books say which one, and send exactly that one again."""

from __future__ import annotations

from tarry.core.names import Names
from tests.acceptance.audit_world import Worker, World, ask_all
from tests.harness.waiting import wait_for

LONG_IN_TIER = "select count(*) from retry where state = 'scheduled' and entered_at < now() - interval '1 second'"


def test_the_only_one_in_its_tier_is_named_at_once(world: World) -> None:
    world.start()
    ask_all(world, world.declare("hour.orders"), ["m1"])
    wait_for(lambda: world.depth("retry.delay.1h") == 1)
    assert world.verify() == (0, [], [])

    assert world.take("retry.delay.1h") == "m1"
    wait_for(lambda: world.verify() == (1, ["m1"], []), what="m1 to be missed")

    quick = ("--settle", "500ms", "--patience", "1s")
    code, shown = world.audit("recover", *quick)
    assert (code, shown["done"], [one["message_id"] for one in shown["missing"]]) == (0, False, ["m1"])
    assert world.depth("retry.delay.1h") == 0, "it only showed what it would do"

    code, done = world.command("audit", "recover", "--yes", *quick)
    assert (code, done["sent"]) == (0, 1)
    assert world.number("select count(*) from transition where state = 'recovered'") == 1
    wait_for(lambda: world.verify() == (0, [], []), what="the books to balance")
    code, done = world.audit("recover", "--yes", *quick)
    assert (code, done["sent"]) == (0, 0), "a second run finds it on the broker"


def test_verify_sees_a_purge_before_the_statistics_do(world: World) -> None:
    world.start()
    ids = [f"m{number}" for number in range(20)]
    ask_all(world, world.declare("hour.orders"), ids)
    wait_for(lambda: world.statistics("retry.delay.1h") == 20, what="the statistics to have them all")
    wait_for(lambda: world.number(LONG_IN_TIER) == 20, what="them to be judged")
    with world.channel() as channel:
        channel.queue_purge("retry.delay.1h")
    code, missing, shortages = world.verify()
    assert (code, sorted(missing), shortages) == (1, sorted(ids), [])


def test_verify_waits_for_statistics_of_what_a_consumer_had_taken(world: World) -> None:
    """It acknowledges what it took right before: for some seconds the statistics still have it as unacknowledged."""
    world.start()
    ask_all(world, world.declare("hour.orders"), ["m1"])
    wait_for(lambda: world.depth("retry.delay.1h") == 1)
    with world.channel() as channel:
        method, _, _ = channel.basic_get("retry.delay.1h")
        assert method is not None
        wait_for(lambda: world.statistics("retry.delay.1h", "messages_unacknowledged") == 1, what="it to be counted")
        wait_for(lambda: world.number(LONG_IN_TIER) == 1, what="it to be judged")
        code, answer = world.audit("verify", "--settle", "500ms", "--patience", "0s")
        assert (code, answer["unjudged"], answer["missing"]) == (1, ["retry.delay.1h"], [])
        code, answer = world.audit("verify", "--settle", "500ms")
        assert (code, answer["unjudged"], answer["missing"]) == (0, [], []), "it is on the broker, with a consumer"
        channel.basic_ack(method.delivery_tag or 0)
    code, answer = world.audit("verify", "--settle", "500ms")
    assert (code, [one["message_id"] for one in answer["missing"]]) == (1, ["m1"])


def test_one_of_many_is_counted_at_once_and_named_when_it_is_overdue(world: World) -> None:
    world.start()
    queue = world.declare("six.orders")
    ids = [f"m{number}" for number in range(20)]
    ask_all(world, queue, ids)
    wait_for(lambda: world.depth("retry.delay.6s") == 20)
    lost = world.take("retry.delay.6s")

    with Worker(world, queue) as worker:
        wait_for(lambda: worker.total == 19, what="the others to return")
        wait_for(lambda: world.verify() == (1, [lost], []), what=f"{lost} to be missed")
        code, done = world.audit("recover", "--yes", "--grace", "2s", "--patience", "1s")
        assert (code, done["sent"]) == (0, 1)
        wait_for(lambda: worker.total == 20, what=f"{lost} to return after all")
        wait_for(lambda: world.verify() == (0, [], []), what="the books to balance")
    assert worker.seen == dict.fromkeys(ids, 1)
    assert min(worker.drifts) >= 0


def test_one_that_the_broker_will_offer_again_is_late_and_is_not_sent_twice(world: World) -> None:
    """It was let go when the next queue was not there, as after a restart: it stays with the tier's worker for three
    minutes, and a later one passes it by.
    """
    world.start()
    queue = world.declare("six.orders")
    ask_all(world, queue, ["m1"])
    wait_for(lambda: world.depth("retry.delay.6s") == 1)
    with world.channel() as channel:
        channel.exchange_delete(Names().ladder(4))
    wait_for(lambda: world.depth("retry.delay.6s") == 0, deadline=20, what="m1 to be let go")
    world.apply()
    ask_all(world, queue, ["m2"])
    with Worker(world, queue) as worker:
        wait_for(lambda: worker.seen == {"m2": 1}, deadline=20, what="m2 to pass by")
    quick = ("--grace", "2s", "--patience", "0s")

    def late() -> list[tuple[str, list[str]]]:
        code, answer = world.audit("verify", *quick)
        return [(one["message_id"], one["where"]) for one in answer["late"]] if code == 0 else []

    wait_for(lambda: late() == [("m1", ["retry.delay.6s"])], deadline=30, what="m1 to be late")
    code, done = world.audit("recover", "--yes", *quick)
    assert (code, done["sent"]) == (0, 0)

    def missing() -> list[str]:
        code, answer = world.audit("verify", *quick, "--offered-again", "1s")
        return [one["message_id"] for one in answer["missing"]] if code == 1 else []

    wait_for(lambda: missing() == ["m1"], what="m1 to be missing: such a broker would have offered it again by then")


def test_what_nothing_brings_back_is_written_off_with_a_reason(world: World) -> None:
    """Claimed in a backup that was restored: its request was dealt with long ago, and the books have no payload."""
    world.start()
    queue = world.declare("hour.orders")
    ask_all(world, queue, ["m1", "m2"])
    wait_for(lambda: world.depth("retry.delay.1h") == 2)
    world.number(
        "update retry set state = 'claimed', claimed_at = now() - interval '1 day', body = null "
        "where message_id = 'm1' returning 1"
    )
    quick = ("--settle", "500ms", "--patience", "1s")
    wait_for(lambda: world.verify() == (1, ["m1"], []), what="m1 to be named")
    code, done = world.audit("recover", "--yes", *quick)
    assert (code, done["sent"]) == (0, 0), "there is nothing to send"

    why = ("--reason", "restored from last night's backup, and m1 was dealt with since")
    waiting = world.text("select id from retry where message_id = 'm2'")
    said = world.refusal("write-off", waiting, "--yes", *why, *quick)
    assert f"Not missing: {waiting}" in said, "what waits in its tier cannot be written off"
    code, shown = world.audit("write-off", *why, *quick)
    assert (code, shown["done"], shown["written_off"]) == (0, False, [])
    assert world.verify() == (1, ["m1"], []), "it only showed what it would do"

    lost = world.text("select id from retry where message_id = 'm1'")
    code, done = world.audit("write-off", lost[:9], "--yes", *why, *quick)
    assert (code, done["written_off"]) == (0, [lost])
    wait_for(lambda: world.verify() == (0, [], []), what="the books to balance")
    assert world.text("select reason from transition where state = 'discarded'") == why[1]
    code, done = world.audit("write-off", "--yes", *why, *quick)
    assert (code, done["written_off"]) == (0, [])

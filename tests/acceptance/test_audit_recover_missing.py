"""A message taken out of a tier by hand: the audit names it and sends exactly that one again."""

from __future__ import annotations

from tarry.core.names import Names
from tests.acceptance.audited import AuditedInstallation, Worker, request_all
from tests.support.waiting import wait_for

LONG_IN_TIER = "select count(*) from retry where state = 'scheduled' and entered_at < now() - interval '1 second'"


def test_the_only_one_in_its_tier_is_named_at_once(installation: AuditedInstallation) -> None:
    installation.start()
    request_all(installation, installation.declare("hour.orders"), ["m1"])
    wait_for(lambda: installation.depth("retry.delay.1h") == 1)
    assert installation.verify() == (0, [], [])

    assert installation.take("retry.delay.1h") == "m1"
    installation.wait_verified("m1")

    quick = ("--settle", "500ms", "--patience", "1s")
    code, shown = installation.audit("recover", *quick)
    assert (code, shown["done"], [one["message_id"] for one in shown["missing"]]) == (0, False, ["m1"])
    assert installation.depth("retry.delay.1h") == 0, "it only showed what it would do"

    code, done = installation.command("audit", "recover", "--yes", *quick)
    assert (code, done["sent"]) == (0, 1)
    assert installation.number("select count(*) from transition where state = 'recovered'") == 1
    installation.wait_verified()
    code, done = installation.audit("recover", "--yes", *quick)
    assert (code, done["sent"]) == (0, 0), "a second run finds it on the broker"


def test_verify_sees_a_purge_before_the_statistics_do(installation: AuditedInstallation) -> None:
    installation.start()
    ids = [f"m{number}" for number in range(20)]
    request_all(installation, installation.declare("hour.orders"), ids)
    wait_for(lambda: installation.statistics("retry.delay.1h") == 20, what="the statistics to have them all")
    wait_for(lambda: installation.number(LONG_IN_TIER) == 20, what="them to be judged")
    with installation.open_channel() as channel:
        channel.queue_purge("retry.delay.1h")
    code, missing, shortages = installation.verify()
    assert (code, sorted(missing), shortages) == (1, sorted(ids), [])


def test_verify_waits_for_statistics_of_what_a_consumer_had_taken(installation: AuditedInstallation) -> None:
    """It acknowledges what it took right before: for some seconds the statistics still have it as unacknowledged."""
    installation.start()
    request_all(installation, installation.declare("hour.orders"), ["m1"])
    wait_for(lambda: installation.depth("retry.delay.1h") == 1)
    with installation.open_channel() as channel:
        method, _, _ = channel.basic_get("retry.delay.1h")
        assert method is not None
        wait_for(
            lambda: installation.statistics("retry.delay.1h", "messages_unacknowledged") == 1, what="it to be counted"
        )
        wait_for(lambda: installation.number(LONG_IN_TIER) == 1, what="it to be judged")
        code, answer = installation.audit("verify", "--settle", "500ms", "--patience", "0s")
        assert (code, answer["unjudged"], answer["missing"]) == (1, ["retry.delay.1h"], [])
        code, answer = installation.audit("verify", "--settle", "500ms")
        assert (code, answer["unjudged"], answer["missing"]) == (0, [], []), "it is on the broker, with a consumer"
        channel.basic_ack(method.delivery_tag or 0)
    code, answer = installation.audit("verify", "--settle", "500ms")
    assert (code, [one["message_id"] for one in answer["missing"]]) == (1, ["m1"])


def test_one_of_many_is_counted_at_once_and_named_when_it_is_overdue(installation: AuditedInstallation) -> None:
    installation.start()
    queue = installation.declare("six.orders")
    ids = [f"m{number}" for number in range(20)]
    request_all(installation, queue, ids)
    wait_for(lambda: installation.depth("retry.delay.6s") == 20)
    lost = installation.take("retry.delay.6s")

    with Worker(installation, queue) as worker:
        wait_for(lambda: worker.total == 19, what="the others to return")
        installation.wait_verified(lost)
        code, done = installation.audit("recover", "--yes", "--grace", "2s", "--patience", "1s")
        assert (code, done["sent"]) == (0, 1)
        wait_for(lambda: worker.total == 20, what=f"{lost} to return after all")
        installation.wait_verified()
    assert worker.seen == dict.fromkeys(ids, 1)
    assert min(worker.drifts) >= 0


def test_a_message_that_the_broker_offers_again_is_late_and_not_recovered(installation: AuditedInstallation) -> None:
    """It left its tier when the next queue was missing, as after a restart: it stays with the tier's worker for three
    minutes, and a later one passes it by.
    """
    installation.start()
    queue = installation.declare("six.orders")
    request_all(installation, queue, ["m1"])
    wait_for(lambda: installation.depth("retry.delay.6s") == 1)
    with installation.open_channel() as channel:
        channel.exchange_delete(Names().ladder(4))
    wait_for(lambda: installation.depth("retry.delay.6s") == 0, deadline=60, what="m1 to leave its tier")
    installation.apply()
    request_all(installation, queue, ["m2"])
    with Worker(installation, queue) as worker:
        wait_for(lambda: worker.seen == {"m2": 1}, deadline=60, what="m2 to pass by")
    quick = ("--grace", "2s", "--patience", "0s")

    def late() -> list[tuple[str, list[str]]]:
        code, answer = installation.audit("verify", *quick)
        return [(one["message_id"], one["where"]) for one in answer["late"]] if code == 0 else []

    installation.wait_checking(lambda: late() == [("m1", ["retry.delay.6s"])], "m1 to be late")
    code, done = installation.audit("recover", "--yes", *quick)
    assert (code, done["sent"]) == (0, 0)

    def missing() -> list[str]:
        code, answer = installation.audit("verify", *quick, "--offered-again", "1s")
        return [one["message_id"] for one in answer["missing"]] if code == 1 else []

    installation.wait_checking(
        lambda: missing() == ["m1"], "m1 to be missing: such a broker would have offered it again"
    )


def test_what_nothing_brings_back_is_written_off_with_a_reason(installation: AuditedInstallation) -> None:
    """Claimed in a backup that was restored: its request was dealt with long ago, and the store has no payload."""
    installation.start()
    queue = installation.declare("hour.orders")
    request_all(installation, queue, ["m1", "m2"])
    scheduled = "select count(*) from retry where state = 'scheduled'"
    wait_for(lambda: installation.number(scheduled) == 2, what="both to be recorded")
    installation.number(
        "update retry set state = 'claimed', claimed_at = now() - interval '1 day', body = null "
        "where message_id = 'm1' returning 1"
    )
    quick = ("--settle", "500ms", "--patience", "1s")
    installation.wait_verified("m1")
    code, done = installation.audit("recover", "--yes", *quick)
    assert (code, done["sent"]) == (0, 0), "there is nothing to send"

    why = ("--reason", "restored from last night's backup, and m1 was dealt with since")
    waiting = installation.text("select id from retry where message_id = 'm2'")
    said = installation.refusal("write-off", waiting, "--yes", *why, *quick)
    assert f"Not missing: {waiting}" in said, "what waits in its tier cannot be written off"
    code, shown = installation.audit("write-off", *why, *quick)
    assert (code, shown["done"], shown["written_off"]) == (0, False, [])
    assert installation.verify() == (1, ["m1"], []), "it only showed what it would do"

    lost = installation.text("select id from retry where message_id = 'm1'")
    code, done = installation.audit("write-off", lost[:9], "--yes", *why, *quick)
    assert (code, done["written_off"]) == (0, [lost])
    installation.wait_verified()
    assert installation.text("select reason from transition where state = 'discarded'") == why[1]
    code, done = installation.audit("write-off", "--yes", *why, *quick)
    assert (code, done["written_off"]) == (0, [])

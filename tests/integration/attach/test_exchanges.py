"""A message that comes home through its exchange carries tarry's keys; only its own may decide who gets it."""

from __future__ import annotations

import pytest

from tarry.attach.detach import detach
from tarry.attach.findings import Level
from tarry.core.names import Destination
from tests.integration.attach.installation import AttachInstallation
from tests.support.waiting import wait_for

VIA = Destination("exchange", "app.events").key
OUR_KEYS = [VIA, "~6>end", "~id:00000000:1"]


@pytest.fixture
def events(installation: AttachInstallation) -> str:
    installation.channel.exchange_declare(
        "app.events", "topic", durable=True, arguments={"alternate-exchange": "retry.unroutable"}
    )
    return "app.events"


def bind(installation: AttachInstallation, key: str, queue: str = "orders") -> None:
    installation.channel.queue_bind(installation.declare(queue, "classic"), "app.events", key)


def come_home(installation: AttachInstallation, key: str) -> None:
    installation.publish(key, b"again", "retry.gate.cancelled", headers={"BCC": OUR_KEYS})
    wait_for(lambda: installation.depth("retry.audit"), what="the tap to see it")


def test_a_message_is_routed_anew_by_its_own_key(installation: AttachInstallation, events: str) -> None:
    bind(installation, "order.*")
    bind(installation, "invoice.*", "invoices")
    (plan,) = installation.attach(exchanges=(events,))
    assert not plan.refused
    come_home(installation, "order.new")
    assert installation.take("orders")[1:] == (b"again", "order.new")
    assert installation.depth("invoices") == 0
    assert installation.attachments()[events].state == "ok"


def test_a_queue_that_takes_everything_gets_it_once(installation: AttachInstallation, events: str) -> None:
    """Which is why `#` is no reason to refuse: it takes each message anyway, and one copy whatever the keys."""
    bind(installation, "#", "everything")
    (plan,) = installation.attach(exchanges=(events,))
    assert not plan.refused
    come_home(installation, "order.new")
    installation.take("everything")
    assert installation.depth("everything") == 0


@pytest.mark.parametrize("key", ["*", "#.*", "*.#"])
def test_a_queue_bound_to_any_single_word_would_match_our_key_so_refused(
    installation: AttachInstallation, events: str, key: str
) -> None:
    bind(installation, key, "words")
    before = installation.everything()
    (plan,) = installation.attach(exchanges=(events,))
    assert f"app.events ─{key}▶ queue words" in plan.texts(Level.REFUSAL)[0]
    assert installation.everything() == before


def test_the_refusal_is_right_about_the_broker(installation: AttachInstallation, events: str) -> None:
    bind(installation, "order.*")
    installation.attach(exchanges=(events,))
    bind(installation, "*", "words")
    come_home(installation, "order.new")
    assert installation.take("words")[2] == "order.new"


def test_a_message_that_matches_nothing_goes_to_the_alternate_exchange(
    installation: AttachInstallation, events: str
) -> None:
    bind(installation, "order.*")
    installation.attach(exchanges=(events,))
    come_home(installation, "invoice.new")
    assert installation.take("retry.unroutable")[1] == b"again"


def test_an_exchange_can_be_detached(
    installation: AttachInstallation, events: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarry.attach.detach.SETTLING_SECONDS", 0.1)
    before = installation.everything()
    installation.attach(exchanges=(events,))
    assert installation.everything() != before
    detach(installation.topology, installation.address, queues=(), exchanges=("app.*",))
    assert installation.everything() == before

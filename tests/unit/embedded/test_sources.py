from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tarry import embedded
from tarry.embedded.sources import Announce, Availability, choose
from tarry.errors import EmbeddedError, NoBrokerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass
class StubSupply:
    version: str
    source: str

    def broker(self, *, data_dir: Path | str | None = None, extra_config: Sequence[str] = ()) -> embedded.Broker:
        raise NotImplementedError


@dataclass
class StubSource:
    name: str
    usable: bool = True
    breaks: str | None = None
    asked_for: list[str | None] = field(default_factory=list)

    def look(self, series: str | None) -> Availability:
        self.asked_for.append(series)
        return Availability(usable=self.usable, sentence=f"taking {self.name}" if self.usable else "not here")

    def take(self, series: str | None, announce: Announce) -> StubSupply:
        if self.breaks:
            raise EmbeddedError(self.breaks)
        announce(f"took {self.name}")
        return StubSupply(series or "any", self.name)


def test_ways_are_docker_machine_package_root_and_no_exported_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672/")
    assert [way.name for way in embedded.ways()] == [
        "Docker",
        "rabbitmq-server on this machine",
        "the distribution's package",
        "a cached Debian root",
    ]


def test_the_first_usable_source_is_taken_and_says_so() -> None:
    said: list[str] = []
    last = StubSource("never asked")
    supply = choose([StubSource("a", usable=False), StubSource("b"), last], "4.3", said.append)
    assert (supply.source, supply.version) == ("b", "4.3")
    assert said == ["RabbitMQ: taking b", "took b"]
    assert last.asked_for == []


def test_a_source_that_breaks_makes_room_for_the_next() -> None:
    said: list[str] = []
    supply = choose([StubSource("a", breaks="no network\ndetails"), StubSource("b")], None, said.append)
    assert supply.source == "b"
    assert said[1] == "RabbitMQ: failed (no network)"


def test_without_any_source_the_error_says_what_was_tried_and_what_helps() -> None:
    sources = [StubSource("a", usable=False), StubSource("b", breaks="disk full")]
    with pytest.raises(NoBrokerError) as caught:
        choose(sources, "9.9", lambda _: None)
    message = str(caught.value)
    assert message.startswith("There is no way to get RabbitMQ 9.9 here.")
    assert "  a: not here\n  b: disk full\n" in message
    for way_out in ("Docker", "apt-get install rabbitmq-server", "tarry embedded install", "tarry up --url"):
        assert way_out in message

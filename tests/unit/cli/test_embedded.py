from __future__ import annotations

from dataclasses import dataclass

import pytest

from tarry.cli import embedded as command
from tarry.errors import EmbeddedError

FACTS: dict[str, str | None] = {
    "rabbitmq_url": "amqp://guest:guest@127.0.0.1:1/",
    "management_url": "http://guest:guest@127.0.0.1:2",
    "database_url": "postgresql://postgres@127.0.0.1:3/tarry",
    "rabbitmq_version": "4.3.6",
    "rabbitmq_source": "nowhere",
}


def test_the_addresses_can_be_pasted_into_a_shell() -> None:
    assert command.for_people(FACTS).splitlines() == [
        "RabbitMQ 4.3.6 is up (nowhere). Ctrl-C stops it.",
        "Management UI: http://127.0.0.1:2/ (user guest, password guest)",
        "",
        "export RABBITMQ_URL=amqp://guest:guest@127.0.0.1:1/",
        "export RABBITMQ_MANAGEMENT_URL=http://guest:guest@127.0.0.1:2",
        "export DATABASE_URL=postgresql://postgres@127.0.0.1:3/tarry",
    ]
    assert "DATABASE_URL" not in command.for_people({**FACTS, "database_url": None})


@dataclass
class Mortal:
    """Lives for so many looks at its pid."""

    looks: int

    @property
    def pid(self) -> int | None:
        self.looks -= 1
        return 1 if self.looks >= 0 else None

    def log_tail(self) -> str:
        return "last words"


@pytest.mark.parametrize(("broker", "server", "who"), [(1, 9, "RabbitMQ"), (9, 1, "PostgreSQL")])
def test_a_service_that_dies_by_itself_is_an_error(
    broker: int, server: int, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(EmbeddedError, match=f"{who} stopped unexpectedly(.|\n)*last words"):
        command.watch(Mortal(broker), Mortal(server))  # type: ignore[arg-type]

"""A broker that runs already, for those who ask for it. It must not be in use by another router."""

from __future__ import annotations

from dataclasses import dataclass

from tarry.audit.depths import ask_queues, read_depths
from tarry.broker.address import Address
from tarry.broker.management import Management
from tarry.core.names import Names
from tarry.embedded.installation import in_series
from tarry.errors import ConflictError, SettingsError

SHOWN = 3


@dataclass(frozen=True, slots=True)
class GivenBroker:
    """Where it is, and which version it has."""

    amqp_url: str
    management_url: str
    version: str
    source: str


def given_broker(address: Address, names: Names, *, series: str | None, new_database: bool) -> GivenBroker:
    """The broker at this address. Raises if it is of another series, or if tarry already works on it."""
    version = str(Management(address).overview()["rabbitmq_version"])
    if not in_series(version, series):
        raise SettingsError(f"{address} is RabbitMQ {version}, not {series}: leave out --series, or --url.")
    _refuse_in_use(address, names, new_database=new_database)
    return GivenBroker(address.url, address.management_with_login, version, str(address))


def _refuse_in_use(address: Address, names: Names, *, new_database: bool) -> None:
    """A router consumes from several queues, also while its intake is paused. The review queue is for people."""
    own = [queue for queue in read_depths(Management(address), names).queues if queue.startswith(names.prefix)]
    answers = ask_queues(address, {*own, names.scheduled} - {names.review_queue})
    if consumed := [queue for queue, answer in answers.items() if answer.consumers]:
        raise ConflictError(
            f"Another router consumes from {_some(consumed)} at {address}. Two routers with different databases must "
            "not share queues: stop that router, use another vhost, or leave out --url for a private broker."
        )
    if new_database and (filled := [queue for queue, answer in answers.items() if answer.messages]):
        raise ConflictError(
            f"Messages wait in {_some(filled)} at {address}, and the database here is new: their history would be "
            "recorded in the wrong place. Use another vhost, or leave out --url for a private broker."
        )


def _some(queues: list[str]) -> str:
    more = len(queues) - SHOWN
    return ", ".join(sorted(queues)[:SHOWN]) + (f" and {more} more" if more > 0 else "")

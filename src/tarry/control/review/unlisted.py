"""Messages in the review queue that tarry did not put there: whose they are, and how they came. Pure."""

from __future__ import annotations

import uuid

from tarry.contract import headers as h
from tarry.contract.deaths import Death, deaths
from tarry.contract.fields import BadTableError, pick
from tarry.contract.message import Acceptance, Delivery, Refused
from tarry.contract.reading import LenientReader
from tarry.contract.refusal import refused
from tarry.core.names import Names

BY_HAND = "put into the review queue by hand"

_DEATHS = h.DEATHS.encode()


def read_unlisted(delivery: Delivery, accept: Acceptance) -> Refused:
    """With a new id. A request that the broker moved here is read as it lay in the intake queue."""
    death = _last(delivery)
    if death is None or death.queue != accept.names.scheduled:
        return refused(delivery, str(uuid.uuid4()), BY_HAND, accept)
    requested = delivery._replace(exchange=death.exchange)
    return refused(requested, str(uuid.uuid4()), _reason(death, accept.names), accept)


def _reason(death: Death, names: Names) -> str:
    """The broker dead-letters from the intake queue what no router has settled."""
    if death.reason == "expired":
        return f"expired in {names.scheduled} before a router read it"
    return f"dead-lettered as {death.reason[:40]!r} from {names.scheduled} before a router settled it"


def _last(delivery: Delivery) -> Death | None:
    try:
        found = pick(delivery.properties.headers or b"", {_DEATHS}).get(_DEATHS)
        return next(deaths(found, LenientReader.decoding), None)
    except BadTableError:
        return None

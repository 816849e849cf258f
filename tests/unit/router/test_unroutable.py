from __future__ import annotations

from tarry.router.unroutable import read_unroutable
from tests.unit.contract.test_request_later_rounds import OURS
from tests.unit.contract.wire import ACCEPT, published


def test_unroutable_keeps_what_its_policy_and_its_priority_depend_on() -> None:
    said = OURS | {"tarry-form": "contract", "priority": "High", "job_type": 7, "owner": "acme", "tarry-priority": "2"}
    request = read_unroutable(published(said, priority=9), ACCEPT).request
    assert (request.priority, request.failure.priority, request.failure.job_type) == (2, "High", "7")
    assert request.failure.owner == "acme"


def test_unroutable_does_not_read_the_applications_own_headers() -> None:
    failure = read_unroutable(
        published(OURS | {"priority": "high", "job_type": "pdf", "owner": "a"}), ACCEPT
    ).request.failure
    assert (failure.priority, failure.job_type, failure.owner) == (None, None, None)

"""`audit recover --review` publishes everything in review again, which duplicates what is still in the queue."""

from __future__ import annotations

import pytest

from tarry.audit import depths
from tarry.audit.verify import AuditRules
from tarry.errors import WrongStateError
from tarry.operations.audit import recover
from tests.integration.operations.review.reviewing import REVIEW, Reviewer, send_to_review
from tests.support.installation import Installation


def test_recover_review_asks_the_queue_itself_whether_it_is_empty(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_to_review(installation, installation.declare("orders"), ["a"])
    stale = depths.QueueDepth(0, 0, 0, known=True)
    monkeypatch.setattr(depths, "_depth", lambda _about: stale)

    with pytest.raises(WrongStateError, match=r"is not empty \(1\)"):
        Reviewer(installation).do(lambda context: recover(context, AuditRules(), review=True, execute=True))

    assert installation.depth(REVIEW) == 1

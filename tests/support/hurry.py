"""The pauses of a router, shortened, for tests that wait for its next pass: `start(**HURRIED)`.

Deadlines and what is waited for stay as they are. Processes that the fork server does not start take their usual time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

HURRY = "TARRY_TESTS_HURRY"
HURRIED = {HURRY: "yes"}


def hurry() -> None:
    """In this process, before the service is built."""
    from tarry.operations import adaptive, cancel_reconciler, intake, pause_reconciler  # noqa: PLC0415  by now imported
    from tarry.service import tap  # noqa: PLC0415  as above

    for task in (pause_reconciler.run, intake.run, cancel_reconciler.run, adaptive.AdaptiveDecisions.run):
        _change(task, every=0.2)
    _change(cancel_reconciler.reconcile, left_for=timedelta(seconds=10))
    tap.CHECK_EVERY = 0.2
    after, *others = tap.RequeueCheck.__init__.__defaults__ or ()
    assert after == tap.REQUEUED_AFTER
    tap.RequeueCheck.__init__.__defaults__ = (6.0, *others)


def _change(function: Callable[..., Any], **defaults: Any) -> None:
    """Changes defaults of a function's keyword-only parameters."""
    known = function.__kwdefaults__ or {}
    assert defaults.keys() <= known.keys()
    function.__kwdefaults__ = known | defaults

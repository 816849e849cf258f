"""Which brokers a run is for (BROKER), and what it means when one is missing."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

SERIES = ("3.10", "4.3")


def wanted_series() -> list[str | None]:
    """None stands for whichever broker is at hand."""
    chosen = os.environ.get("BROKER") or "any"
    if chosen == "any":
        return [None]
    if chosen == "all":
        return list(SERIES)
    if chosen in SERIES:
        return [chosen]
    raise pytest.UsageError(f"BROKER={chosen} is not one of {', '.join(SERIES)}, all, any")


def missing(reason: str, series: str | None = None) -> NoReturn:
    """On a laptop a missing broker is a skip; in CI it would be a hole in the proof, so it fails unless allowed.

    TARRY_ALLOW_MISSING_BROKER names the series that may be missing ("4.3"), or says "all".
    """
    allowed = os.environ.get("TARRY_ALLOW_MISSING_BROKER", "").split(",")
    if os.environ.get("CI") and not {series, "all"} & set(allowed):
        hint = f"CI must run every broker; TARRY_ALLOW_MISSING_BROKER={series or 'all'} lets this one go."
        pytest.fail(f"{reason}\n{hint}", pytrace=False)
    pytest.skip(reason)

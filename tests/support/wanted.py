"""The broker series of a run (BROKER), and what happens if one is missing."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

SERIES = ("3.10", "4.3")


def wanted_series() -> list[str | None]:
    """None stands for any broker that is available."""
    chosen = os.environ.get("BROKER") or "any"
    if chosen == "any":
        return [None]
    if chosen == "all":
        return list(SERIES)
    if chosen in SERIES:
        return [chosen]
    raise pytest.UsageError(f"BROKER={chosen} is not one of {', '.join(SERIES)}, all, any")


def missing(reason: str, series: str | None = None) -> NoReturn:
    """Skips the test on a laptop. In CI a missing broker fails the test, unless it is allowed.

    TARRY_ALLOW_MISSING_BROKER names the series that may be missing ("4.3"), or says "all".
    """
    allowed = os.environ.get("TARRY_ALLOW_MISSING_BROKER", "").split(",")
    if os.environ.get("CI") and not {series, "all"} & set(allowed):
        hint = f"CI must run every broker; TARRY_ALLOW_MISSING_BROKER={series or 'all'} lets this one go."
        pytest.fail(f"{reason}\n{hint}", pytrace=False)
    pytest.skip(reason)

"""Exceptions for owners that could never apply are refused before anything is stored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tarry.core.budgets import MOST
from tarry.errors import SettingsError
from tarry.operations.budgets import set_budget

NO_STORE: Any = None


@pytest.mark.parametrize(
    ("owner", "limits", "problem"),
    [
        ("", {"daily": 5}, "No message has this owner"),
        ("o" * 256, {"daily": 5}, "No message has this owner"),
        ("a\x00b", {"daily": 5}, "No message has this owner"),
        ("acme", {"daily": MOST + 1}, "Limits go from 0 to"),
        ("acme", {"daily": 5, "max_retries": -1}, "Limits go from 0 to"),
        ("acme", {"daily": None}, "Nothing to set"),
    ],
)
def test_budgets_refuse_an_exception_that_cannot_apply(owner: str, limits: dict[str, int | None], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        asyncio.run(set_budget(NO_STORE, owner, policy=None, limits=limits, actor="ann", reason=None))

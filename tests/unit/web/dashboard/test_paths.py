from __future__ import annotations

import pytest

from tarry.web.dashboard.app import PAGES, is_ours


def test_every_page_is_reached() -> None:
    assert [page.path for page in PAGES if not is_ours(page.path)] == []


@pytest.mark.parametrize("path", ["/api/v1/retries", "/api/", "/healthz", "/readyz", "/metrics", "/nothing", "*", ""])
def test_other_paths_are_passed_on(path: str) -> None:
    assert not is_ours(path)

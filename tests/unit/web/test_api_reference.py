"""The generated page of the HTTP API. `make check` proves that it is fresh."""

from __future__ import annotations

import re

from tarry.web.api.reference import api_markdown

PAGE = api_markdown()


def section(title: str) -> str:
    return PAGE.partition(f"\n### {title}\n")[2].partition("\n### ")[0]


def test_api_reference_has_parameters_bodies_and_answers() -> None:
    assert "| `limit` | query | integer, 1 to 200 | Maximum number of items. |" in section("GET /retries")
    assert "| `retry_id` | path | text | A retry id or its prefix. |" in section("GET /retries/{retry_id}")
    pause = section("POST /queues/{name}/pause")
    assert "The body is an object:" in pause
    assert re.search(r"^\| `lasts` \| duration \|", pause, re.MULTILINE)
    assert "Answers with `Timeline`." in section("GET /retries/{retry_id}")


def test_api_reference_says_what_each_path_is_for() -> None:
    parts = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    assert len(parts) > 60
    assert [part.splitlines()[0] for part in parts if not re.match(r"[A-Z]+ /\S+\n\n\*\*[^*]+\.\*\*", part)] == []

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from tarry.errors import SettingsError
from tarry.settings import load_settings
from tarry.settings.tokens import Role, new_token
from tarry.web.api.auth import Access, Caller
from tarry.web.api.problems import ProblemError

LOOK, LOOK_ENTRY = new_token("viewer", Role.LOOK)
OPERATE, OPERATE_ENTRY = new_token("ops", Role.OPERATE)
WITH_TOKENS = Access((LOOK_ENTRY, OPERATE_ENTRY))
WITHOUT = Access(())


def admitted(access: Access, method: str = "GET", **headers: str) -> str | int:
    """The caller's name, or the status of the refusal."""
    given = Headers({name.replace("_", "-"): value for name, value in headers.items()})
    try:
        return access.admit(given, method).name
    except ProblemError as refused:
        return refused.problem.status


@pytest.mark.parametrize(
    ("authorization", "method", "expected"),
    [
        ("Bearer LOOK", "GET", "viewer"),
        ("bearer  LOOK ", "GET", "viewer"),
        ("Bearer LOOK", "POST", 403),
        ("Bearer LOOK", "DELETE", 403),
        ("Bearer LOOK", "BREW", 403),
        ("Bearer OPERATE", "GET", "ops"),
        ("Bearer OPERATE", "POST", "ops"),
        ("Bearer OPERATEx", "POST", 401),
        ("Basic OPERATE", "POST", 401),
        ("OPERATE", "POST", 401),
        ("Bearer", "GET", 401),
        ("", "GET", 401),
    ],
)
def test_with_tokens_only_a_token_opens(authorization: str, method: str, expected: str | int) -> None:
    # Tokens are new with every run, and tests must have the same names in every process.
    given = authorization.replace("LOOK", LOOK).replace("OPERATE", OPERATE)
    assert admitted(WITH_TOKENS, method, authorization=given, host="127.0.0.1") == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"host": "127.0.0.1:8086"}, "local"),
        ({"host": "localhost:8086"}, "local"),
        ({"host": "[::1]:8086"}, "local"),
        ({"host": "127.1.2.3"}, "local"),
        ({"host": "tarry.example.com:8086"}, 421),
        ({"host": "localhost.example.com"}, 421),
        ({"host": "10.0.0.1"}, 421),
        ({"host": ""}, 421),
        ({"host": "[zzz"}, 421),
        ({}, 421),
        ({"host": "localhost:8086", "origin": "http://localhost:8086"}, "local"),
        ({"host": "localhost:8086", "origin": "http://localhost:3000"}, 403),
        ({"host": "localhost:8086", "origin": "https://example.com"}, 403),
        ({"host": "localhost:8086", "origin": "null"}, 403),
        ({"host": "localhost:8086", "sec_fetch_site": "cross-site"}, 403),
        ({"host": "localhost:8086", "sec_fetch_site": "same-site"}, 403),
        ({"host": "localhost:8086", "sec_fetch_site": "same-origin"}, "local"),
        ({"host": "localhost:8086", "sec_fetch_site": "none"}, "local"),
    ],
)
def test_without_tokens_this_machine_may_and_no_web_page(headers: dict[str, str], expected: str | int) -> None:
    assert admitted(WITHOUT, "POST", **headers) == expected


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "tarry.example.com"])  # noqa: S104 - the very point
def test_an_address_open_to_others_needs_tokens_or_no_api(host: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Access.of(load_settings(http_host=host))
    assert f"HTTP_HOST={host}" in str(caught.value)
    assert "tarry token new" in str(caught.value)
    assert "HTTP_API=off" in str(caught.value)
    assert Access.of(load_settings(http_host=host, api_tokens=str(LOOK_ENTRY))).tokens == (LOOK_ENTRY,)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.53", "::1", "localhost"])
def test_a_loopback_address_needs_none(host: str) -> None:
    assert Access.of(load_settings(http_host=host)).tokens == ()


def test_the_actor_is_the_token_and_who_it_acts_for() -> None:
    assert Caller("ci", Role.LOOK).actor() == "ci"
    assert Caller("ci", Role.LOOK, "alice").actor() == "ci/alice"
    assert Caller("ci", Role.LOOK, "alice").actor("bob") == "ci/bob"

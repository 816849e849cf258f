"""URLs with a login in them: taken apart strictly, and never quoted in an error."""

from __future__ import annotations

import pytest

from tarry.core.urls import BadUrlError, Url, split_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("amqp://host", Url("amqp", None, None, "host", None, "", "")),
        ("AMQP://Host:5673/", Url("amqp", None, None, "host", 5673, "/", "")),
        ("amqp://u:p@host/v?heartbeat=5", Url("amqp", "u", "p", "host", None, "/v", "heartbeat=5")),
        ("amqp://u%40:p%2F%25@host/", Url("amqp", "u@", "p/%", "host", None, "/", "")),
        ("amqp://u:a:b[c] \\d@host", Url("amqp", "u", "a:b[c] \\d", "host", None, "", "")),
        ("amqp://u@[::1]:5672/a%2Fb", Url("amqp", "u", None, "::1", 5672, "/a%2Fb", "")),
        ("amqp://u:é℀@host", Url("amqp", "u", "é℀", "host", None, "", "")),
    ],
)
def test_split_url_takes_an_address_apart(text: str, url: Url) -> None:
    assert split_url(text) == url


@pytest.mark.parametrize(
    "login",
    [
        "u:Qz7#Wx9",
        "u:Qz7/Wx9",
        "u:Qz7?Wx9",
        "u:Qz7@Wx9",
        "u:Qz7%Wx9",
        "u:947/Wx9",
        "u:Qz7%4",
        "u:Qz7\nWx9",
        "Qz7/u:Wx9",
    ],
)
@pytest.mark.parametrize("rest", ["host:5672/v", "host", "[::1]/?heartbeat=5"])
def test_split_url_asks_for_percent_encoding_and_shows_nothing(login: str, rest: str) -> None:
    with pytest.raises(BadUrlError, match="percent-encode") as refused:
        split_url(f"amqp://{login}@{rest}")
    assert not [part for part in ("Qz7", "Wx9", "947") if part in str(refused.value)]


@pytest.mark.parametrize(
    "text",
    ["", "host:5672", "amqp:/host", "amqp://", "amqp://host:Qz7", "amqp://host:70000", "amqp://[Qz7]/",
     "amqp://[::1", "amqp://a b", "amqp://host]:5672", "amqp://host#Qz7", "amqp://host/Qz7@Wx9"],
)  # fmt: skip
def test_split_url_refuses_what_is_no_address(text: str) -> None:
    with pytest.raises(BadUrlError) as refused:
        split_url(text)
    assert not [part for part in ("Qz7", "Wx9") if part in str(refused.value)]

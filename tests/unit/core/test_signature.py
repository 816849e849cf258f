"""Signatures of webhooks, checked against the reference library of Standard Webhooks."""

from __future__ import annotations

import base64
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from tarry.core.signature import BadSecretError, BadSignatureError, Secret

TEXT = "whsec_" + base64.b64encode(b"k" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 32).decode()
SECRET = Secret.parse(TEXT)
BODY = '{"grüße": 1}'.encode()
NOW = 1_900_000_000


@given(st.text(st.characters(codec="ascii", min_codepoint=33, exclude_characters="."), min_size=1), st.text())
def test_the_reference_library_verifies_what_is_signed(id_: str, body: str) -> None:
    headers = SECRET.sign(id_, int(time.time()), body.encode())

    Webhook(TEXT).verify(body.encode(), headers, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER).verify(body.encode(), headers, json_parse=False)


@given(
    st.text(st.characters(exclude_characters="."), min_size=1, max_size=50).filter(str.isprintable),
    st.binary(max_size=200),
)
def test_what_is_signed_is_verified(id_: str, body: bytes) -> None:
    assert SECRET.verify(SECRET.sign(id_, NOW, body), body, NOW) == id_


def test_while_a_secret_is_changed_both_are_accepted() -> None:
    both = Secret.parse(f"{TEXT} {OTHER}")
    signed = both.sign("a", int(time.time()), b"{}")

    assert Webhook(TEXT).verify(b"{}", signed) == Webhook(OTHER).verify(b"{}", signed) == {}
    assert both.verify(Secret.parse(OTHER).sign("a", NOW, BODY), BODY, NOW) == "a"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"webhook-signature": Secret.parse(OTHER).sign("a", NOW, BODY)["webhook-signature"]}, "no signature matches"),
        ({"webhook-signature": "v1a,AAAA v1,***"}, "no signature matches"),
        ({"webhook-id": "b"}, "no signature matches"),
        ({"webhook-timestamp": str(NOW + 1)}, "no signature matches"),
        ({"webhook-timestamp": str(NOW - 301)}, "more than 5 minutes"),
        ({"webhook-timestamp": str(NOW + 301)}, "more than 5 minutes"),
        ({"webhook-timestamp": "soon"}, "seconds since 1970"),
        ({"webhook-timestamp": "9" * 30}, "seconds since 1970"),
        ({"webhook-id": ""}, "it needs the headers"),
        ({"webhook-id": "a" * 300}, "at most 255"),
    ],
)
def test_what_is_not_signed_by_the_secret_is_refused(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(BadSignatureError, match=reason):
        SECRET.verify(SECRET.sign("a", NOW, BODY) | changes, BODY, NOW)


def test_an_id_with_a_full_stop_is_refused_since_its_signature_fits_another_request() -> None:
    given = SECRET.sign(f"a.{NOW}", NOW, BODY)
    assert SECRET.verify(given | {"webhook-id": "a"}, f"{NOW}.".encode() + BODY, NOW) == "a"

    with pytest.raises(BadSignatureError, match="no full stop"):
        SECRET.verify(given, BODY, NOW)


def test_a_changed_body_is_refused() -> None:
    with pytest.raises(BadSignatureError, match="no signature matches"):
        SECRET.verify(SECRET.sign("a", NOW, BODY), BODY + b" ", NOW)


@pytest.mark.parametrize("text", ["", "whsec_not base64", "whsec_äää", "hunter2", "whsec_" + "A" * 200])
def test_a_bad_secret_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(BadSecretError, match=r"openssl rand -base64 32") as refused:
        Secret.parse(text)
    assert not text or text.removeprefix("whsec_") not in str(refused.value)


def test_a_secret_is_not_shown() -> None:
    assert "k" * 8 not in repr(SECRET)

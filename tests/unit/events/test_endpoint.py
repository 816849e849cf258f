"""The endpoint of a webhook: which addresses are refused, and what becomes of every kind of answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tarry.events.endpoint import DeliveryError, RefusedAddressError, Taken, WebhookEndpoint, refused_because
from tests.support.receiver import Handler, Receiver, receiving, status

LOCAL = "127.0.0.1"


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def post(url: str, *, timeout: float = 60, **options: Any) -> Taken:
    async def run() -> Taken:
        endpoint = WebhookEndpoint(url, timeout, **{"allow_private": True} | options)
        try:
            return await endpoint.post(b"{}", {"content-type": "application/json"})
        finally:
            await endpoint.close()

    return asyncio.run(run())


def refused(url: str, **options: Any) -> str:
    with pytest.raises(RefusedAddressError) as found:
        post(url, **options)
    return str(found.value)


def failed(url: str, **options: Any) -> DeliveryError:
    with pytest.raises(DeliveryError) as found:
        post(url, **options)
    return found.value


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.9.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
        *("0.0.0.0", "255.255.255.255", "224.0.0.1", "240.0.0.1", "198.18.0.1", "192.0.2.1"),  # noqa: S104 - refused
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1"),
        *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "2002:7f00:1::", "2002:a00:1::1"),
    ],
)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert refused_because(address, allow_private=False)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_a_public_address_is_allowed(address: str) -> None:
    assert refused_because(address, allow_private=False) is None


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "192.168.1.1", "::1", "fd12::1", "::ffff:10.0.0.1"])
def test_private_addresses_can_be_allowed(address: str) -> None:
    assert refused_because(address, allow_private=True) is None


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "::", "224.0.0.1", "fe80::1", "64:ff9b::a9fe:a9fe"),
        *("168.63.129.16", "::ffff:168.63.129.16", "100.100.100.200", "fd00:ec2::254"),
    ],
)
def test_credentials_of_cloud_machines_are_never_within_reach(address: str) -> None:
    assert refused_because(address, allow_private=True)


@pytest.mark.parametrize(
    ("host", "line"),
    [
        ("127.0.0.1", "127.0.0.1 is a loopback address; allow_private = true of the webhook"),
        ("10.1.2.3", "10.1.2.3 is a private or reserved address; allow_private = true"),
        ("169.254.169.254", "169.254.169.254 is link-local, where cloud machines have their credentials; no webhook"),
        ("localhost", "localhost resolves to "),
        ("0x7f.1", "0x7f.1 resolves to 127.0.0.1, which is a loopback address"),
        ("2130706433", "2130706433 resolves to 127.0.0.1"),
        ("[::ffff:127.0.0.1]", "::ffff:127.0.0.1 is a loopback address"),
        ("[::1]", "::1 is a loopback address"),
    ],
)
def test_a_refused_endpoint_gets_no_request(receiver: Receiver, host: str, line: str) -> None:
    before = len(receiver.received)

    assert line in refused(f"http://{host}:{receiver.port}/", allow_private=False)
    assert len(receiver.received) == before


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Names resolve to these addresses, one list after the other; returns the names that were asked for."""
    asked: list[str] = []

    async def getaddrinfo(_: object, host: str, port: int, **__: Any) -> list[Any]:
        asked.append(host)
        found = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return asked


def test_a_name_with_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, ["8.8.8.8", "10.0.0.7"])

    assert "hook.example resolves to 10.0.0.7, which is a private" in refused(
        "http://hook.example/", allow_private=False
    )


@pytest.mark.parametrize("address", ["169.254.169.254", "127.0.0.1", "10.0.0.7", "fd12::1", "::ffff:169.254.169.254"])
def test_a_name_that_resolves_to_a_refused_address_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    resolving(monkeypatch, [address])

    assert f"hook.example resolves to {address}, which is " in refused("http://hook.example/", allow_private=False)


def test_a_name_is_resolved_once_and_the_checked_address_is_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = resolving(monkeypatch, [LOCAL], ["10.0.0.1"])

    assert post(f"http://hook.example:{receiver.port}/once").status == 204
    assert asked == ["hook.example"]
    assert receiver.at("/once")[0].headers["host"] == f"hook.example:{receiver.port}"


def test_the_next_address_is_tried_if_nobody_listens_at_the_first(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, ["127.0.0.99", LOCAL])

    assert post(f"http://hook.example:{receiver.port}/next").status == 204


def test_a_proxy_from_the_environment_is_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    assert post(f"http://{LOCAL}:{receiver.port}/direct").status == 204


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_named(receiver: Receiver, code: int) -> None:
    receiver.answers["/moved"] = status(code, location=f"http://user:pw@{LOCAL}:{receiver.port}/elsewhere?token=1")
    error = failed(f"http://{LOCAL}:{receiver.port}/moved")

    assert (error.kind, error.status) == ("redirect", code)
    place = f"http://{LOCAL}:{receiver.port}/elsewhere"
    assert str(error) == f"answered {code}, a redirect to {place}; redirects are not followed"
    assert receiver.at("/elsewhere") == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [(400, "status_400"), (401, "status_401"), (404, "status_404"), (410, "gone"), (500, "status_500")],
)
def test_any_other_status_is_a_failure(receiver: Receiver, code: int, kind: str) -> None:
    """Only with a 429 or 503 does `Retry-After` count, since such a retry spends no attempt."""
    receiver.answers["/no"] = status(code, retry_after="1")
    error = failed(f"http://{LOCAL}:{receiver.port}/no")

    assert (error.kind, error.status, error.retry_after_ms) == (kind, code, None)


@pytest.mark.parametrize(("text", "hint"), [("30", 30_000), ("999999999", 86_400_000), ("soon", None)])
def test_retry_after_is_read_and_limited(receiver: Receiver, text: str, hint: int | None) -> None:
    receiver.answers["/busy"] = status(503, retry_after=text)

    assert failed(f"http://{LOCAL}:{receiver.port}/busy").retry_after_ms == hint


def test_an_oversized_answer_is_cut(receiver: Receiver) -> None:
    written: list[int] = []

    def endless(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", str(1 << 30))
        handler.end_headers()
        with contextlib.suppress(OSError):
            while True:
                handler.wfile.write(b"x" * 65_536)
                written.append(65_536)

    receiver.answers["/endless"] = endless

    assert post(f"http://{LOCAL}:{receiver.port}/endless") == Taken(200, cut=True)
    assert sum(written) < 1 << 29


def _silent(ended: threading.Event) -> Callable[[Handler], None]:
    def silent(_: Handler) -> None:
        ended.wait(30)

    return silent


def test_a_slow_endpoint_is_given_up_after_the_timeout(receiver: Receiver) -> None:
    ended = threading.Event()
    receiver.answers["/slow"] = _silent(ended)
    began = time.monotonic()
    try:
        error = failed(f"http://{LOCAL}:{receiver.port}/slow", timeout=0.2)
    finally:
        ended.set()

    assert (error.kind, str(error)) == ("timeout", "no answer within 200ms")
    assert time.monotonic() - began < 20


def test_the_timeout_includes_the_lookup_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", never)

    assert failed("http://hook.example/", timeout=0.1).kind == "timeout"


def test_a_status_counts_even_if_the_rest_of_the_answer_does_not_come(receiver: Receiver) -> None:
    ended = threading.Event()

    def stalls(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", "100")
        handler.end_headers()
        handler.wfile.flush()
        ended.wait(30)

    receiver.answers["/stalls"] = stalls
    try:
        assert post(f"http://{LOCAL}:{receiver.port}/stalls", timeout=3) == Taken(200, cut=True)
    finally:
        ended.set()


def test_an_endpoint_that_is_down_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind((LOCAL, 0))
        error = failed(f"http://{LOCAL}:{taken.getsockname()[1]}/")

    assert error.kind == "unreachable"


def test_a_name_that_does_not_exist_is_unreachable() -> None:
    error = failed("http://nobody.invalid/")

    assert error.kind == "unreachable"
    assert str(error).startswith("nobody.invalid cannot be resolved")


def test_the_certificate_is_checked_for_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    about = ["-subj", "/CN=hook.example", "-addext", "subjectAltName=DNS:hook.example"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *about]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    trusted = ssl.create_default_context(cafile=str(certificate))
    resolving(monkeypatch, [LOCAL])
    with receiving(tls=server) as receiver:
        assert post(f"https://hook.example:{receiver.port}/", verify=trusted).status == 204
        wrong = failed(f"https://other.example:{receiver.port}/", verify=trusted)

    assert wrong.kind == "unreachable"
    assert "certificate verify failed" in str(wrong)

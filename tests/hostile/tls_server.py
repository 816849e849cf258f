"""Good and bad certificates, and a TLS server in front of a broker that presents one of them."""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.spaces import address_of

LOCAL = "DNS:localhost,IP:127.0.0.1"
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Certificates:
    """In a folder: `ca.pem` signed the others; `stranger.pem` signed itself. Each has its key beside it."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        self._folder = folder
        self._itself("ca", "DNS:the-authority")
        self._itself("stranger", LOCAL)
        self._signed("good", LOCAL, days=2)
        self._signed("elsewhere", "DNS:rabbit.example", days=2)
        self._signed("expired", LOCAL, days=-1)
        self._signed("client", "DNS:tarry", days=2)

    def pem(self, name: str) -> str:
        return str(self._folder / f"{name}.pem")

    def key(self, name: str) -> str:
        return str(self._folder / f"{name}.key")

    def _itself(self, name: str, alternative: str) -> None:
        _openssl("req", "-x509", *KEY, "-days", "2", *self._about(name, alternative), "-out", self.pem(name))

    def _signed(self, name: str, alternative: str, days: int) -> None:
        asked = str(self._folder / f"{name}.csr")
        _openssl("req", *KEY, *self._about(name, alternative), "-out", asked)
        by = ("-CA", self.pem("ca"), "-CAkey", self.key("ca"), "-copy_extensions", "copy")
        _openssl("x509", "-req", "-in", asked, *by, "-days", str(days), "-out", self.pem(name))

    def _about(self, name: str, alternative: str) -> tuple[str, ...]:
        return "-subj", f"/CN={name}", "-addext", f"subjectAltName={alternative}", "-keyout", self.key(name)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@contextlib.contextmanager
def showing(made: Certificates, name: str, target: str, *, asks: bool = False) -> Iterator[int]:
    """The port of a server that shows this certificate and passes everything on to the target in plain.

    `asks`: it wants a certificate of the caller's too, signed by the same authority.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.pem(name), made.key(name))
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(made.pem("ca"))
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve, args=(listener, context, address_of(target)), daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _serve(listener: socket.socket, context: ssl.SSLContext, target: tuple[str, int]) -> None:
    while True:
        try:
            caller, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_pass_on, args=(caller, context, target), daemon=True).start()


def _pass_on(caller: socket.socket, context: ssl.SSLContext, target: tuple[str, int]) -> None:
    """In one thread, by turns: two at once on one connection is what OpenSSL does not allow."""
    with (
        contextlib.suppress(OSError),
        caller,
        context.wrap_socket(caller, server_side=True) as safe,
        socket.create_connection(target) as plain,
    ):
        safe.settimeout(0.05)  # what select sees may be half a record
        while True:
            ready = [safe] if safe.pending() else select.select([safe, plain], [], [])[0]
            if safe in ready and not _carried(safe, plain):
                return
            if plain in ready and not _carried(plain, safe):
                return


def _carried(source: socket.socket, sink: socket.socket) -> bool:
    """What there is now; False at the end."""
    try:
        data = source.recv(65_536)
    except TimeoutError:
        return True
    if data:
        before = sink.gettimeout()
        sink.settimeout(10)
        sink.sendall(data)
        sink.settimeout(before)
    return bool(data)

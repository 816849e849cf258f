from __future__ import annotations

import contextlib
import gc
import socket
import threading
import time
import warnings
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.proxy import Proxy
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.spaces import Database


def echo(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=answer, args=(client,)).start()


def answer(client: socket.socket) -> None:
    with client, contextlib.suppress(OSError):
        while chunk := client.recv(1024):
            client.sendall(chunk)


@pytest.fixture
def wire() -> Iterator[Proxy]:
    """In front of a server that sends everything back."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=echo, args=(listener,))
        thread.start()
        with Proxy(listener.getsockname()) as proxy:
            yield proxy
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def connect(wire: Proxy) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", wire.port), timeout=30)
    client.sendall(b"hello")
    return client


def test_it_carries_bytes_and_endings(wire: Proxy) -> None:
    with connect(wire) as client:
        assert client.recv(5) == b"hello"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(5) == b""
    wait_for(lambda: wire.connections == 0, what="the connection to be forgotten")


def test_a_delay_is_latency_in_each_direction(wire: Proxy) -> None:
    wire.delay(0.1)
    begin = time.monotonic()
    with connect(wire) as client:
        assert client.recv(5) == b"hello"
    assert time.monotonic() - begin >= 0.2


def test_a_cut_is_a_reset_and_new_connections_are_welcome(wire: Proxy) -> None:
    with connect(wire) as client:
        assert client.recv(5) == b"hello"
        wire.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(5)
    with connect(wire) as client:
        assert client.recv(5) == b"hello"


def test_refusing_is_for_new_connections_only(wire: Proxy) -> None:
    with connect(wire) as client:
        assert client.recv(5) == b"hello"
        wire.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(wire)
        client.sendall(b"again")
        assert client.recv(5) == b"again"
    wire.heal()
    with connect(wire) as client:
        assert client.recv(5) == b"hello"


def test_a_black_hole_accepts_and_never_answers(wire: Proxy) -> None:
    with connect(wire) as before:
        assert before.recv(5) == b"hello"
        wire.blackhole()
        before.sendall(b"lost")
        with connect(wire) as during:
            for client in (before, during):
                client.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    client.recv(5)
            wire.heal()
            for client in (before, during):
                client.settimeout(30)
                with pytest.raises(ConnectionResetError):
                    client.recv(5)
    with connect(wire) as after:
        assert after.recv(5) == b"hello"


def test_a_target_that_is_down_resets_the_client() -> None:
    with Proxy(("127.0.0.1", 1)) as wire, pytest.raises(ConnectionResetError), connect(wire) as client:
        client.recv(5)


def test_it_leaves_no_socket_behind_however_suddenly_it_ends(wire: Proxy) -> None:
    """Some are being accepted, some are being connected through; the collector would tell of any that is left."""
    with contextlib.ExitStack() as clients, Proxy(("127.0.0.1", wire.port)) as sudden:
        for _ in range(20):
            clients.enter_context(socket.create_connection(("127.0.0.1", sudden.port), timeout=30))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(one.message) for one in said] == []


def test_a_database_can_be_reached_through_it(database: Database, proxy: Callable[..., Proxy]) -> None:
    wire = proxy(database.dsn)
    with psycopg.connect(database.through(wire.port)) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == (database.name,)
        wire.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")

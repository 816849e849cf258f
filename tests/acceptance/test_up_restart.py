"""`tarry up` again and again on one folder: private, at the same addresses, and with a log to read."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pika
import psycopg

from tarry.demo import stage
from tarry.embedded import ports
from tests.acceptance.up_command import Running, objects_on, up
from tests.support.spaces import Database, Vhost
from tests.support.waiting import eventually

LOGGED = r"(?m)^\d{4}-\S+ .*started"


def addresses(made: Running) -> dict[str, int | None]:
    """Every port that somebody may have written down."""
    health = re.findall(r"health\s+(\S+)/readyz", made.text)
    return {url: urlsplit(url).port for url in [*made.exports.values(), *health]}


def test_up_is_private_and_keeps_its_ports_and_its_log_over_restarts(
    vhost: Vhost, database: Database, series: str | None, exported: Mapping[str, str], open_folder: Path
) -> None:
    log = open_folder / "up" / "service.log"
    keep_http_port(open_folder / "up")

    # The addresses of an installation are exported: it is left alone. The log is followed.
    with up(open_folder, series, "--follow", environment=exported) as first:
        assert objects_on(vhost) == []
        assert_private(first, vhost, database)

        def followed() -> None:
            assert re.search(LOGGED, first.text), f"it said:\n{first.text}\nits log has:\n{log.read_text()}"

        eventually(followed, deadline=120)
    before = addresses(first)
    assert len(before) == 4
    assert "started" in log.read_text()
    assert "\x1b[" not in log.read_text()
    assert re.search(rf"service's log\s+{re.escape(str(log))}", first.text)

    # Again: the same four ports; the log of the first start is kept, and the new one is not shown.
    with up(open_folder, series, environment=exported) as second:
        assert "started" in log.with_name("service.log.1").read_text()
    assert addresses(second) == before
    assert "is in use" not in second.text
    assert not re.search(LOGGED, second.text)

    # Two ports are taken: only these are replaced, and it says so.
    *_, health = before.values()
    management = urlsplit(first.exports["RABBITMQ_MANAGEMENT_URL"]).port
    with (
        socket.create_server(("127.0.0.1", management or 0)),
        socket.create_server(("127.0.0.1", health or 0)),
        up(open_folder, series, environment=exported) as third,
    ):
        pass
    for name in ("RABBITMQ_URL", "DATABASE_URL"):
        assert third.exports[name] == first.exports[name]
    assert f"The management port was {management}, which is in use; it is " in third.text
    assert f"The HTTP port was {health}, which is in use; it is " in third.text


def keep_http_port(folder: Path) -> None:
    """As after an earlier start. Tests that run at the same time may use the port of a first start."""
    folder.mkdir()
    folder.chmod(0o755)
    (folder / stage.FILE).write_text(json.dumps({"HTTP": ports.free(1)[0]}))


def assert_private(made: Running, vhost: Vhost, database: Database) -> None:
    """It has a broker and a database of its own, with the settings that are not addresses."""
    assert list(made.exports) == ["RABBITMQ_URL", "RABBITMQ_MANAGEMENT_URL", "DATABASE_URL"]
    assert made.exports["RABBITMQ_URL"] != vhost.amqp_url
    assert made.exports["DATABASE_URL"] != database.dsn
    with pika.BlockingConnection(pika.URLParameters(made.exports["RABBITMQ_URL"])) as connection:
        connection.channel().queue_declare("shop.requests", passive=True)
    psycopg.connect(made.exports["DATABASE_URL"]).close()

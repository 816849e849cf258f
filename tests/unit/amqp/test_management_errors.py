"""Against a small HTTP server that answers as the management API does when it says no."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tarry.amqp.management import Management
from tarry.amqp.url import Address
from tarry.errors import BrokerError, BrokerUnreachableError

ANSWERS: dict[str, tuple[int, object]] = {
    "/api/overview": (200, {"rabbitmq_version": "4.1.0-rc.2+abc"}),
    "/api/feature-flags": (401, {"error": "not_authorised", "reason": "Not administrator user"}),
    "/api/policies/a%2Fb%20c%25": (200, []),
    "/api/queues/a%2Fb%20c%25": (404, {"error": "Object Not Found", "reason": "Not Found"}),
    "/api/exchanges/a%2Fb%20c%25": (500, {"reason": "boom"}),
}


class Api(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS.get(self.path.partition("?")[0], (404, {"reason": "Not Found"}))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """Quietly."""


@pytest.fixture
def management() -> Iterator[Management]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield Management(Address.parse("amqp://guest:guest@host/a%2Fb%20c%25", management_url=url))
        server.shutdown()


def test_a_version_is_numbers_without_its_suffix(management: Management) -> None:
    assert management.version() == (4, 1, 0)


def test_a_vhost_that_needs_escaping_is_found(management: Management) -> None:
    assert management.policies() == []


def test_a_missing_right_names_the_user_and_the_tag(management: Management) -> None:
    with pytest.raises(BrokerError, match=r"User 'guest' may not use .* 'feature-flags': .* set_user_tags guest"):
        management.feature_flags()


def test_a_missing_vhost_is_named_with_the_command_that_makes_it(management: Management) -> None:
    with pytest.raises(BrokerError, match="rabbitmqctl add_vhost 'a/b c%'"):
        management.queues()


def test_any_other_answer_keeps_the_brokers_own_words(management: Management) -> None:
    with pytest.raises(BrokerError, match=r"refused exchanges/.*: 500 boom"):
        management.exchanges()


def test_what_is_not_there_is_none(management: Management) -> None:
    assert management.queue("no such") is None
    assert management.bindings_from("no such") == []


def test_nobody_listening_says_which_plugin_and_which_setting() -> None:
    address = Address.parse("amqp://host/", management_url="http://127.0.0.1:1")

    with pytest.raises(BrokerUnreachableError, match=r"rabbitmq_management.*RABBITMQ_MANAGEMENT_URL.*refused"):
        Management(address).overview()

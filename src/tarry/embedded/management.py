"""The little that is asked of a broker's management API here: are you up, and which version are you."""

from __future__ import annotations

import base64
import json
import urllib.request
from typing import Any

from tarry.core.urls import split_url


def request(url: str, path: str, *, method: str = "GET", body: object = None, timeout: float = 5.0) -> Any:
    """`url` carries user and password; proxies of the environment are not for loopback addresses."""
    parts = split_url(url)
    login = f"{parts.user or 'guest'}:{parts.password or 'guest'}"
    call = urllib.request.Request(  # noqa: S310  the scheme is the caller's, http or https
        f"{parts.place.rstrip('/')}/api/{path}",
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={
            "Authorization": "Basic " + base64.b64encode(login.encode()).decode(),
            "Content-Type": "application/json",
        },
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(call, timeout=timeout) as answer:
        content = answer.read()
    return json.loads(content) if content else None


def answers(url: str) -> bool:
    try:
        request(url, "overview", timeout=2)
    except (OSError, ValueError):
        return False
    return True


def version(url: str) -> str:
    return str(request(url, "overview")["rabbitmq_version"])


def serves(url: str, port: int, node: str | None = None) -> bool:
    """The node itself says that it takes AMQP connections there. A mere answer on a port may be somebody else's."""
    try:
        listeners = request(url, "overview", timeout=2)["listeners"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return any(
        listener["protocol"] == "amqp" and listener["port"] == port and node in {None, listener["node"]}
        for listener in listeners
    )

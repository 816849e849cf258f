"""The little that is asked of a broker's management API here: are you up, and which version are you."""

from __future__ import annotations

import base64
import json
import socket
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import unquote, urlsplit


def request(url: str, path: str, *, method: str = "GET", body: object = None, timeout: float = 5.0) -> Any:
    """`url` carries user and password; proxies of the environment are not for loopback addresses."""
    parts = urlsplit(url)
    login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
    host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
    call = urllib.request.Request(  # noqa: S310  the scheme is the caller's, http or https
        f"{parts.scheme}://{host}{parts.path.rstrip('/')}/api/{path}",
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
    except (OSError, ValueError, urllib.error.URLError):
        return False
    return True


def version(url: str) -> str:
    return str(request(url, "overview")["rabbitmq_version"])


def accepts(port: int) -> bool:
    """The AMQP listener takes connections; it is opened last, so then everything is there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True

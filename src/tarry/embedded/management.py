"""The two requests to a broker's management API that are needed here: is it running, and which version is it."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tarry.core.urls import split_url


def request(url: str, path: str, *, method: str = "GET", body: object = None, timeout: float = 5.0) -> Any:
    """`url` contains user and password. Proxies from the environment are not used for loopback addresses."""
    parts = split_url(url)
    answer = httpx.request(
        method,
        f"{parts.place.rstrip('/')}/api/{path}",
        content=None if body is None else json.dumps(body),
        headers={"Content-Type": "application/json"},
        auth=(parts.user or "guest", parts.password or "guest"),
        timeout=timeout,
        trust_env=False,
        verify=parts.scheme == "https",  # loading the CA certificates takes 40 ms: not for plain HTTP
    )
    answer.raise_for_status()
    return answer.json() if answer.content else None


def version(url: str) -> str:
    return str(request(url, "overview")["rabbitmq_version"])


def serves(url: str, port: int, node: str | None = None) -> bool:
    """Whether the node itself reports that it accepts AMQP connections on the port.

    An answer on the port alone is not enough: it may come from another process.
    """
    try:
        listeners = request(url, "overview", timeout=2)["listeners"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return False
    return any(
        listener["protocol"] == "amqp" and listener["port"] == port and node in {None, listener["node"]}
        for listener in listeners
    )

"""The broker's address: an AMQP URL and the URL of its management API."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote, unquote

import pika

from tarry import __version__
from tarry.amqp.tls import Tls
from tarry.core.urls import BadUrlError, Url, bracketed, split_url
from tarry.errors import SettingsError

AMQP_PORTS = {"amqp": 5672, "amqps": 5671}
MANAGEMENT_PORTS = {"http": 15672, "https": 15671}

HEARTBEAT = 15
"""Default heartbeat in seconds; the URL can set another. A peer that is silent for two heartbeats is disconnected."""

SLOWEST_HEARTBEAT = 600


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed broker address. `str()` hides the password."""

    scheme: str
    host: str
    port: int
    user: str
    password: str
    vhost: str
    management: str
    """scheme://host:port of the management API; the AMQP URL's credentials are used unless its URL has its own."""
    management_user: str
    management_password: str
    tls: Tls = field(default_factory=Tls)
    management_tls: Tls = field(default_factory=Tls)
    heartbeat: int = HEARTBEAT

    @classmethod
    def parse(cls, url: str, *, management_url: str | None = None, ca_file: str | None = None) -> Address:
        """`amqp://user:password@host:5672/vhost?heartbeat=15`; vhost and password are percent-decoded, no path means
        `/`. The query of either URL may also set `cacertfile`, `certfile` and `keyfile`.
        """
        parts = _split(url, AMQP_PORTS, "an AMQP address", "amqp://user:password@host:5672/vhost")
        user, password = parts.user or "guest", parts.password or "guest"
        tls = Tls(ca_file).with_query(parts.query)
        web_url = management_url or _default_management(parts.scheme, parts.host)
        web = _split(web_url, MANAGEMENT_PORTS, "a management address", "http://host:15672")
        return cls(
            scheme=parts.scheme,
            host=parts.host,
            port=parts.port or AMQP_PORTS[parts.scheme],
            user=user,
            password=password,
            vhost=unquote(parts.path[1:]) or "/",
            management=f"{web.scheme}://{bracketed(web.host)}:{web.port or MANAGEMENT_PORTS[web.scheme]}",
            management_user=web.user or user,
            management_password=web.password or password,
            tls=tls,
            management_tls=tls.with_query(web.query),
            heartbeat=_heartbeat(parts.query),
        )

    def parameters(self, purpose: str) -> pika.ConnectionParameters:
        """Connection parameters for pika; `purpose` names the connection in the management UI."""
        return pika.ConnectionParameters(
            host=self.host,
            port=self.port,
            virtual_host=self.vhost,
            credentials=pika.PlainCredentials(self.user, self.password),
            heartbeat=self.heartbeat,
            blocked_connection_timeout=None,
            socket_timeout=10,
            stack_timeout=15,
            ssl_options=self._tls(),
            client_properties={"connection_name": f"tarry {purpose}", "product": "tarry", "version": __version__},
        )

    def _tls(self) -> pika.SSLOptions | None:
        if self.scheme != "amqps":
            return None
        return pika.SSLOptions(self.tls.context(), self.host)

    @property
    def url(self) -> str:
        """The whole address, including the password: for child processes, never for logs."""
        credentials = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        address = f"{self.scheme}://{credentials}@{bracketed(self.host)}:{self.port}/{quote(self.vhost, safe='')}"
        heartbeat = "" if self.heartbeat == HEARTBEAT else f"heartbeat={self.heartbeat}"
        return "?".join(filter(None, [address, "&".join(filter(None, [heartbeat, self.tls.query]))]))

    @property
    def management_with_login(self) -> str:
        """The management address, including the password: for child processes, never for logs."""
        scheme, _, host = self.management.partition("://")
        login = f"{quote(self.management_user, safe='')}:{quote(self.management_password, safe='')}"
        return "?".join(filter(None, [f"{scheme}://{login}@{host}", self.management_tls.query]))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.user}:***@{bracketed(self.host)}:{self.port}/{quote(self.vhost, safe='')}"

    __repr__ = __str__


def _split(url: str, schemes: Collection[str], what: str, example: str) -> Url:
    try:
        parts = split_url(url)
    except BadUrlError as error:
        raise SettingsError(f"This is not {what}: write {example} ({error})") from None
    if parts.scheme not in schemes:
        raise SettingsError(f"This is not {what}: write {example}")
    return parts


def _default_management(scheme: str, host: str) -> str:
    return f"{'https' if scheme == 'amqps' else 'http'}://{bracketed(host)}"


def _heartbeat(query: str) -> int:
    """The heartbeat from the query. Other parameters are ignored: other clients may share the URL."""
    given = parse_qs(query, keep_blank_values=True).get("heartbeat", [str(HEARTBEAT)])[-1]
    if not given.isdecimal() or not 1 <= int(given) <= SLOWEST_HEARTBEAT:
        raise SettingsError(
            f"heartbeat={given!r} in the AMQP address is not a number of seconds from 1 to {SLOWEST_HEARTBEAT}: write "
            "amqp://user:password@host:5672/vhost?heartbeat=15"
        )
    return int(given)

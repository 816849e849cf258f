"""Client of the RabbitMQ management API.

Policy changes are protected from SIGINT and SIGTERM: if the client disconnects during a write, the broker may record
the change without applying it.
"""

from __future__ import annotations

import re
import shlex
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from urllib.parse import quote

import pyrabbit2
from pyrabbit2.api import APIError
from pyrabbit2.api import PermissionError as Unauthorised
from pyrabbit2.http import HTTPError, NetworkError

from tarry.amqp.tls import distrusted
from tarry.amqp.url import Address
from tarry.errors import BrokerError, BrokerUnreachableError, SettingsError

DEFERRED = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer SIGINT and SIGTERM to the end of the block. Python runs signal handlers in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: dict[int, None] = {}
    handlers = {number: signal.signal(number, lambda got, _frame: arrived.update({got: None})) for number in DEFERRED}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for got in arrived:
            signal.raise_signal(got)


Json = dict[str, Any]
T = TypeVar("T")
NOT_FOUND = 404
STATISTICS = 12.0
"""Seconds after which all statistics are up to date: queues and channels emit theirs every five seconds, and the API
collects them every five. Until then a broker that has just started reports zero."""

DOTS = (".", "..")
"""In a URL path these are resolved as path segments even if encoded, so such a name can only be found in a list."""


class Management:
    """The management API calls that tarry makes: it reads the state of the broker and sets policies."""

    def __init__(self, address: Address, *, timeout: int = 30) -> None:
        scheme, _, host = address.management.partition("://")
        self.address = address
        self.vhost = address.vhost
        self._api = pyrabbit2.Client(
            host,
            address.management_user.encode(),  # as UTF-8: a str would be encoded as Latin-1
            address.management_password.encode(),
            timeout=timeout,
            scheme=scheme,
            verify=address.management_tls.ca_file or True,
            cert=address.management_tls.client,
        )

    def overview(self) -> Json:
        return cast("Json", self._call("overview", self._api.get_overview))

    def version(self) -> tuple[int, ...]:
        """The version as `(3, 10, 8)`; a suffix such as `-rc.1` is removed."""
        text = str(self.overview()["rabbitmq_version"]).partition("-")[0].partition("+")[0]
        return tuple(int(part) for part in text.split(".")[:3])

    def feature_flags(self) -> dict[str, str]:
        """Name to state (`enabled`, `disabled`, …)."""
        return {flag["name"]: flag["state"] for flag in self._call("feature-flags", self._get, "feature-flags")}

    def queues(self) -> list[Json]:
        """All queues of the vhost with their depths, without the expensive statistics of the default view.

        `messages` can be up to `STATISTICS` seconds old and includes messages that are being dead-lettered.
        """
        return self._list("queues", disable_stats="true", enable_queue_totals="true")

    def traffic(self) -> list[Json]:
        """All queues of the vhost with the rates at which messages come and are taken."""
        rates = ",".join(f"message_stats.{one}_details.rate" for one in ("publish", "deliver_get"))
        return self._list("queues", columns=f"name,{rates}")

    def queue(self, name: str) -> Json | None:
        if name in DOTS:
            return next((one for one in self.queues() if one["name"] == name), None)
        return cast("Json | None", self._maybe(self._path("queues", name), self._api.get_queue, self.vhost, name))

    def exchanges(self) -> list[Json]:
        return cast("list[Json]", self._call(self._path("exchanges"), self._api.get_exchanges, self.vhost))

    def bindings(self) -> list[Json]:
        return self._list("bindings")

    def bindings_from(self, exchange: str) -> list[Json]:
        path = f"{self._path('exchanges', exchange)}/bindings/source"
        return cast("list[Json]", self._maybe(path, self._get, path) or [])

    def queue_bindings(self, queue: str) -> list[Json]:
        path = f"{self._path('queues', queue)}/bindings"
        return cast("list[Json]", self._call(path, self._api.get_queue_bindings, self.vhost, queue))

    def policies(self) -> list[Json]:
        return self._list("policies")

    def operator_policies(self) -> list[Json]:
        return self._list("operator-policies")

    def set_policy(self, name: str, *, pattern: str, definition: Json, priority: int, apply_to: str) -> None:
        body = {"pattern": pattern, "definition": definition, "priority": priority, "apply-to": apply_to}
        with uninterrupted():
            self._call(self._path("policies", name), self._api.create_policy, self.vhost, name, **body)

    def delete_policy(self, name: str) -> None:
        """Delete a policy; succeeds if another client has deleted it at the same time."""
        try:
            with uninterrupted():
                self._call(self._path("policies", name), self._api.delete_policy, self.vhost, name)
        except BrokerError:
            if any(policy["name"] == name for policy in self.policies()):
                raise

    @property
    def _quoted(self) -> str:
        return quote(self.vhost, safe="")

    def _path(self, kind: str, name: str | None = None) -> str:
        """Objects of a kind in this vhost, or one of them."""
        return f"{kind}/{self._quoted}" + ("" if name is None else f"/{quote(name, safe='')}")

    def _list(self, kind: str, **parameters: str) -> list[Json]:
        path = self._path(kind)
        return cast("list[Json]", self._call(path, self._get, path, parameters))

    def _get(self, path: str, parameters: dict[str, str] | None = None) -> Any:
        # pyrabbit2 has no method for: feature flags, queues without statistics, operator policies, the policies and
        # bindings of one vhost (only of all), the bindings of one source exchange (its method is empty).
        return self._api._call(path, "GET", params=parameters)  # noqa: SLF001 - see above

    def _maybe(self, path: str, function: Callable[..., T], *args: Any) -> T | None:
        """As `_call`; None if the broker answers 404."""
        with self._translated(path):
            try:
                return function(*args)
            except HTTPError as error:
                if error.status == NOT_FOUND:
                    return None
                raise

    def _call(self, path: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Calls a function that requests this path; errors are explained."""
        with self._translated(path):
            return function(*args, **kwargs)

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        where = f"the management API at {self.address.management}"
        try:
            yield
        except Unauthorised as error:
            raise BrokerError(self._unauthorised(where, what)) from error
        except HTTPError as error:
            if error.status == NOT_FOUND and self._quoted in what:
                raise BrokerError(
                    f"{where} knows no {what}: is there a vhost {self.vhost!r} on it? "
                    f"Create it with: rabbitmqctl add_vhost {shlex.quote(self.vhost)}"
                ) from error
            reason = str(error.detail or error.reason).strip()
            raise BrokerError(f"{where} refused {what}: {error.status} {reason}") from error
        except OSError as error:  # a missing TLS file: it is opened at the first call
            raise SettingsError(f"{where} cannot be queried: {error}") from error
        except (NetworkError, APIError) as error:
            if (untrusted := _certificate_error(error)) is not None:
                raise distrusted(where, untrusted) from error
            raise BrokerUnreachableError(
                f"No answer from {where}: is the management plugin on (rabbitmq-plugins enable rabbitmq_management), "
                "and is the address right? If it is elsewhere, set --management-url or RABBITMQ_MANAGEMENT_URL. "
                f"({_short(error)})"
            ) from error

    def _unauthorised(self, where: str, what: str) -> str:
        user = self.address.management_user
        return (
            f"User {user!r} may not use {where} for {what!r}: check the password, that it has a tag "
            f"(rabbitmqctl set_user_tags {shlex.quote(user)} policymaker), and that it may enter the vhost "
            f"(rabbitmqctl list_permissions -p {shlex.quote(self.vhost)})."
        )


def _certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """The certificate error, which is nested several exceptions deep."""
    seen, left = set[int](), [error]
    while left:
        one = left.pop()
        if isinstance(one, ssl.SSLCertVerificationError):
            return one
        if id(one) not in seen:
            seen.add(id(one))
            around = (one.__cause__, one.__context__, getattr(one, "reason", None), *one.args)
            left += [inner for inner in around if isinstance(inner, BaseException)]
    return None


def _short(error: Exception) -> str:
    """The useful part of the message, without the text that `requests` wraps around it."""
    text = str(error)
    for found in re.findall(r"\[Errno -?\d+\] ([^'\")]+)|(certificate verify failed: [^(]+)|(Timeout[^']*)", text):
        return "".join(found).strip()
    return re.sub(r"<class '[^']*'>\s*", "", text)

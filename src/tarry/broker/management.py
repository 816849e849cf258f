"""The management API, typed and for one vhost: pyrabbit2 underneath, errors that say which right is missing."""

from __future__ import annotations

import json
import re
import shlex
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast
from urllib.parse import quote

import pyrabbit2
from pyrabbit2.api import APIError
from pyrabbit2.api import PermissionError as Unauthorised
from pyrabbit2.http import HTTPError, NetworkError

from tarry.broker.address import Address
from tarry.broker.signals import uninterrupted
from tarry.broker.tls import distrusted
from tarry.errors import BrokerError, BrokerUnreachableError, SettingsError

Json = dict[str, Any]
T = TypeVar("T")
NOT_FOUND = 404
STATISTICS = 12.0
"""Seconds after which all statistics are new: queues and channels emit theirs every five seconds, and the API collects
them every five. Until then a broker that has just started says zero."""

DOTS = (".", "..")
"""In a path these lead elsewhere, however they are written: such a name can only be looked for in a list."""


class Management:
    """What tarry reads from the broker, and the policies it sets."""

    def __init__(self, address: Address, *, timeout: int = 30) -> None:
        scheme, _, host = address.management.partition("://")
        self.address = address
        self.vhost = address.vhost
        self._api = pyrabbit2.Client(
            host,
            address.management_user.encode(),  # as UTF-8: text would have to be Latin-1
            address.management_password.encode(),
            timeout=timeout,
            scheme=scheme,
            verify=address.management_tls.ca_file or True,
            cert=address.management_tls.client,
        )

    def overview(self) -> Json:
        return cast("Json", self._call(self._api.get_overview))

    def version(self) -> tuple[int, ...]:
        """`(3, 10, 8)`; a suffix such as `-rc.1` is cut off."""
        text = str(self.overview()["rabbitmq_version"]).partition("-")[0].partition("+")[0]
        return tuple(int(part) for part in text.split(".")[:3])

    def feature_flags(self) -> dict[str, str]:
        """Name to state (`enabled`, `disabled`, …)."""
        return {flag["name"]: flag["state"] for flag in self._get("feature-flags")}

    def whoami(self) -> Json:
        """Our own user, with its tags."""
        return cast("Json", self._call(self._api.get_whoami))

    def queues(self) -> list[Json]:
        """All queues of the vhost with their depths, read without the costly statistics of the default view.

        `messages` is what the queue said last, seconds ago (`STATISTICS`), and counts what is being dead-lettered.
        """
        return self._get_list("queues", {"disable_stats": "true", "enable_queue_totals": "true"})

    def queue(self, name: str) -> Json | None:
        if name in DOTS:
            return next((one for one in self.queues() if one["name"] == name), None)
        return cast("Json | None", self._maybe(f"queues/{self._quoted}/{quote(name, safe='')}"))

    def exchanges(self) -> list[Json]:
        return self._get_list("exchanges")

    def exchange(self, name: str) -> Json | None:
        if name in DOTS:
            return next((one for one in self.exchanges() if one["name"] == name), None)
        return cast("Json | None", self._maybe(f"exchanges/{self._quoted}/{quote(name, safe='')}"))

    def bindings(self) -> list[Json]:
        return self._get_list("bindings")

    def bindings_from(self, exchange: str) -> list[Json]:
        found = self._maybe(f"exchanges/{self._quoted}/{quote(exchange, safe='')}/bindings/source")
        return cast("list[Json]", found or [])

    def queue_bindings(self, queue: str) -> list[Json]:
        return cast("list[Json]", self._call(self._api.get_queue_bindings, self.vhost, queue))

    def policies(self) -> list[Json]:
        return self._get_list("policies")

    def operator_policies(self) -> list[Json]:
        return self._get_list("operator-policies")

    def set_policy(self, name: str, *, pattern: str, definition: Json, priority: int, apply_to: str) -> None:
        body = {"pattern": pattern, "definition": definition, "priority": priority, "apply-to": apply_to}
        with uninterrupted():
            self._call(self._api.create_policy, self.vhost, name, **body)

    def delete_policy(self, name: str) -> None:
        """Two people may do it at once: a policy that somebody else has just deleted is deleted."""
        try:
            with uninterrupted():
                self._call(self._api.delete_policy, self.vhost, name)
        except BrokerError:
            if any(policy["name"] == name for policy in self.policies()):
                raise

    def definitions(self) -> Json:
        return cast("Json", self._get(f"definitions/{self._quoted}"))

    def upload_definitions(self, definitions: Json) -> None:
        """Into this vhost; what exists already is skipped silently by the broker, so verify afterwards."""
        self._send("POST", f"definitions/{self._quoted}", definitions)

    def permissions(self) -> Json | None:
        """The rights of our own user in this vhost."""
        return cast("Json | None", self._maybe(f"permissions/{self._quoted}/{quote(self.address.user, safe='')}"))

    def vhost_exists(self) -> bool:
        return self._maybe(f"vhosts/{self._quoted}") is not None

    @property
    def _quoted(self) -> str:
        return quote(self.vhost, safe="")

    def _get_list(self, what: str, parameters: dict[str, str] | None = None) -> list[Json]:
        return cast("list[Json]", self._get(f"{what}/{self._quoted}", parameters))

    def _get(self, path: str, parameters: dict[str, str] | None = None) -> Any:
        return self._call(self._api._call, path, "GET", None, None, parameters)  # noqa: SLF001 - pyrabbit2 has no method for these paths

    def _send(self, method: str, path: str, body: Json) -> None:
        headers = {"content-type": "application/json"}
        self._call(self._api._call, path, method, json.dumps(body), headers)  # noqa: SLF001 - as above

    def _maybe(self, path: str) -> Any:
        """None where the broker answers that there is no such thing."""
        with self._translated(path):
            try:
                return self._api._call(path, "GET")  # noqa: SLF001 - as above
            except HTTPError as error:
                if error.status == NOT_FOUND:
                    return None
                raise

    def _call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        with self._translated(str(args[0]) if args else ""):
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
        except OSError as error:  # of a file for TLS, which is looked for at the first call
            raise SettingsError(f"{where} cannot be asked: {error}") from error
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
    """Several layers down."""
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
    """Requests wraps the one interesting sentence in several layers of its own."""
    text = str(error)
    for found in re.findall(r"\[Errno -?\d+\] ([^'\")]+)|(certificate verify failed: [^(]+)|(Timeout[^']*)", text):
        return "".join(found).strip()
    return re.sub(r"<class '[^']*'>\s*", "", text)

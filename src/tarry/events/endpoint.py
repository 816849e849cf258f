"""Sends a request to the endpoint of a webhook, and only to an address that it may go to.

The name is resolved once, its addresses are checked, and the connection goes to a checked address: a name that resolves
to something else a moment later has no effect. Redirects are not followed, and proxies from the environment not used.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from socket import SOCK_STREAM, gaierror
from typing import TYPE_CHECKING

from tarry.client.hints import busy
from tarry.core.durations import humanise
from tarry.core.urls import Url, split_url

if TYPE_CHECKING:
    import httpx

LARGEST_ANSWER = 64 << 10
"""Bytes of an answer that are read; the connection is closed after more."""

LONGEST_HINT_MS = 24 * 3_600_000
"""A longer `Retry-After` counts as this long."""

MOST_ADDRESSES = 4
"""Addresses of a name that are tried, one after the other."""

IDLE_S = 2.0
"""Seconds that an idle connection is kept: less than servers usually do."""

_NAT64 = IPv6Network("64:ff9b::/96")
_LOCAL_NAT64 = IPv6Network("64:ff9b:1::/48")
_COMPATIBLE = IPv6Network("::/96")
"""The old form of an IPv4 address in an IPv6 address."""

_LAST_32_BITS = 0xFFFFFFFF

_OF_THE_CLOUD = frozenset(map(ip_address, ("168.63.129.16", "100.100.100.200", "fd00:ec2::254")))
"""Where machines of Azure, Alibaba Cloud and AWS reach services of their cloud, besides the link-local addresses. The
first is in a public range, the others are in private ones.
"""


class RefusedAddressError(Exception):
    """The endpoint is at an address that webhooks must not reach. The message is the reason."""


class DeliveryError(Exception):
    """The endpoint did not take the request. The message is the reason."""

    def __init__(self, kind: str, reason: str, status: int | None = None, retry_after_ms: int | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        """Such as `status_503`, `timeout` or `redirect`."""
        self.status = status
        self.retry_after_ms = retry_after_ms


@dataclass(frozen=True, slots=True)
class Taken:
    """The endpoint took the request: it answered with 2xx."""

    status: int
    cut: bool
    """Whether the answer was larger than what is read of one, or had not ended in time."""


def refused_because(address: str, *, allow_private: bool) -> str | None:
    """Why a webhook must not go to this address; None if it may."""
    found = _unwrapped(ip_address(address))
    if found.is_unspecified or found.is_multicast:
        return "is not the address of one machine"
    if found.is_link_local:
        return "is link-local, where cloud machines have their credentials"
    if found in _OF_THE_CLOUD:
        return "is where cloud machines have their credentials"
    if found.is_global and not found.is_reserved and not _is_site_local(found):
        return None
    if allow_private and (found.is_loopback or not found.is_reserved):
        return None
    return "is a loopback address" if found.is_loopback else "is a private or reserved address"


def _unwrapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address stands for: mapped, NAT64, 6to4 or the old compatible form."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    number = int(address)
    if address in _NAT64 or (address in _COMPATIBLE and number > 1):
        return IPv4Address(number & _LAST_32_BITS)
    if address in _LOCAL_NAT64:
        return IPv4Address(number & _LAST_32_BITS) if number & _LAST_32_BITS else IPv4Address("10.0.0.1")
    return address


def _is_site_local(address: IPv4Address | IPv6Address) -> bool:
    return isinstance(address, IPv6Address) and address.is_site_local


async def checked_addresses(url: Url, *, allow_private: bool) -> list[str]:
    """The addresses of the URL's host. Raises RefusedAddressError if one of them is refused: the owner of the name
    would choose which one is used.
    """
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(url.host, port, type=SOCK_STREAM)
    except (gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a valid name"
        raise DeliveryError("unreachable", f"{url.host} cannot be resolved: {reason}") from error
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    for address in addresses:
        because = refused_because(address, allow_private=allow_private)
        if because is not None:
            where = address if address == url.host else f"{url.host} resolves to {address}, which"
            raise RefusedAddressError(f"{where} {because}; {_remedy(address)}")
    return addresses[:MOST_ADDRESSES]


def _remedy(address: str) -> str:
    if refused_because(address, allow_private=True) is not None:
        return "no webhook may go there"
    return "allow_private = true of the webhook, or TARRY_WEBHOOK_ALLOW_PRIVATE, allows it"


@dataclass(slots=True)
class WebhookEndpoint:
    """One endpoint. Its client is created at first use: httpx takes half a second to import."""

    url: str = field(repr=False)
    timeout_s: float
    allow_private: bool = False
    verify: ssl.SSLContext | bool = True
    hides_path: bool = False
    """Whether no message may show the path of the URL, nor that of a redirect: it is often the same."""
    _client: httpx.AsyncClient | None = None

    async def post(self, body: bytes, headers: Mapping[str, str]) -> Taken:
        """Raises DeliveryError or RefusedAddressError. The timeout applies to the whole of it.

        Once the endpoint has answered with a status, that status counts, whatever becomes of the rest.
        """
        statuses: list[Taken] = []
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._post(body, headers, statuses)
        except TimeoutError:
            if statuses:
                return Taken(statuses[0].status, cut=True)
            limit = humanise(self.timeout_s * 1_000)
            raise DeliveryError("timeout", f"no answer within {limit}") from None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _post(self, body: bytes, headers: Mapping[str, str], statuses: list[Taken]) -> Taken:
        import httpx  # noqa: PLC0415

        url = split_url(self.url)
        addresses = await checked_addresses(url, allow_private=self.allow_private)
        for place, address in enumerate(addresses, start=1):
            try:
                return await self._post_to(address, url.host, body, headers, statuses)
            except httpx.ConnectError as error:
                if place == len(addresses):
                    raise DeliveryError("unreachable", _reason(error)) from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if statuses:
                    return Taken(statuses[0].status, cut=True)
                raise DeliveryError("unreachable", _reason(error)) from error
        raise DeliveryError("unreachable", f"{url.host} has no address")

    async def _post_to(
        self, address: str, name: str, body: bytes, headers: Mapping[str, str], statuses: list[Taken]
    ) -> Taken:
        """The connection goes to the address; the name is in the Host header, and the certificate is checked for it."""
        import httpx  # noqa: PLC0415

        client = self._ready()
        client.cookies.clear()
        url = httpx.URL(self.url)
        sent = {"host": url.netloc.decode("ascii"), "accept-encoding": "identity", **headers}
        target = url.copy_with(host=address)
        async with client.stream(
            "POST", target, content=body, headers=sent, extensions={"sni_hostname": name}
        ) as response:
            _check(response, hide_path=self.hides_path)
            statuses.append(Taken(response.status_code, cut=False))
            return Taken(response.status_code, cut=await _is_cut(response))

    def _ready(self) -> httpx.AsyncClient:
        import httpx  # noqa: PLC0415

        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=None,  # noqa: S113 - `post` has one for all of it
                trust_env=False,
                follow_redirects=False,
                verify=self.verify,
                limits=httpx.Limits(keepalive_expiry=IDLE_S),
            )
        return self._client


def _check(response: httpx.Response, *, hide_path: bool) -> None:
    """Raises DeliveryError unless the status is 2xx."""
    status = response.status_code
    if response.is_success:
        return
    if response.has_redirect_location:
        target = response.headers["location"]
        raise DeliveryError(
            "redirect",
            f"answered {status}, a redirect to {_place(target, hide_path=hide_path)}; redirects are not followed",
            status,
        )
    found = busy(response, time.time_ns() // 1_000_000)
    hint = found.retry_after_ms if found is not None else None
    kind = "gone" if status == HTTPStatus.GONE else f"status_{status}"
    raise DeliveryError(kind, f"answered {status}", status, None if hint is None else min(hint, LONGEST_HINT_MS))


def _place(target: str, *, hide_path: bool) -> str:
    """Where a redirect leads, for display: without credentials and query."""
    try:
        found = split_url(target)
        return (found._replace(path="/…") if hide_path else found).place[:200]
    except ValueError:
        return "another path" if target.startswith("/") else "a URL that cannot be read"


async def _is_cut(response: httpx.Response) -> bool:
    """Reads the answer, so that the connection can be used again; up to a limit."""
    size = 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > LARGEST_ANSWER:
            return True
    return False


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__

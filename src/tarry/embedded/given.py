"""The broker that RABBITMQ_URL points at. It is somebody else's: used, never started, stopped or harmed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote

from tarry.core.urls import BadUrlError, bracketed, split_url
from tarry.embedded import management
from tarry.embedded.installation import in_series
from tarry.embedded.sources import Finding
from tarry.errors import EmbeddedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tarry.embedded.sources import Announce


def management_url_for(amqp_url: str) -> str:
    """As RABBITMQ_MANAGEMENT_URL says, else the default port of the same host with the same user."""
    if given := os.environ.get("RABBITMQ_MANAGEMENT_URL"):
        return given
    parts = split_url(amqp_url)
    login = f"{quote(parts.user or 'guest', safe='')}:{quote(parts.password or 'guest', safe='')}"
    secure = parts.scheme == "amqps"
    return f"{'https' if secure else 'http'}://{login}@{bracketed(parts.host)}:{15671 if secure else 15672}"


@dataclass(frozen=True)
class GivenBroker:
    amqp_url: str
    management_url: str
    version: str
    source: str = "RABBITMQ_URL"
    pid: int | None = None

    def start(self) -> None:
        """It runs already."""

    def close(self) -> None:
        """It goes on running."""

    def log_tail(self, lines: int = 40) -> str:
        return f"(the last {lines} lines are where that broker keeps its log)"

    def ctl(self, *arguments: str) -> str:
        self._not_ours(f"rabbitmqctl {' '.join(arguments)}")

    def stop(self) -> None:
        self._not_ours("stop")

    def restart(self) -> None:
        self._not_ours("restart")

    def kill(self) -> None:
        self._not_ours("kill")

    def pause(self) -> None:
        self._not_ours("pause")

    def unpause(self) -> None:
        self._not_ours("unpause")

    def _not_ours(self, what: str) -> NoReturn:
        raise EmbeddedError(f"The broker of RABBITMQ_URL is not ours to {what}. Unset RABBITMQ_URL to get one that is.")


@dataclass(frozen=True)
class GivenSupply:
    amqp_url: str
    management_url: str
    version: str
    source: str = "RABBITMQ_URL"

    def broker(self, *, data_dir: Path | str | None = None, extra_config: Sequence[str] = ()) -> GivenBroker:
        if data_dir is not None or extra_config:
            raise EmbeddedError("The broker of RABBITMQ_URL keeps its own data and configuration. Unset RABBITMQ_URL.")
        return GivenBroker(self.amqp_url, self.management_url, self.version)


class Given:
    name = "RABBITMQ_URL"

    def look(self, series: str | None) -> Finding:
        url = os.environ.get("RABBITMQ_URL")
        if not url:
            return Finding(usable=False, sentence="not set")
        try:
            version = management.version(management_url_for(url))
        except BadUrlError as problem:
            return Finding(usable=False, sentence=f"set, but it or RABBITMQ_MANAGEMENT_URL cannot be read ({problem})")
        except (OSError, ValueError, KeyError) as problem:
            hint = "set RABBITMQ_MANAGEMENT_URL=http://user:password@host:port"
            return Finding(usable=False, sentence=f"set, but its management API does not answer ({problem}); {hint}")
        if not in_series(version, series):
            return Finding(usable=False, sentence=f"set, but that is version {version}, not {series}")
        return Finding(usable=True, sentence=f"taking the one of RABBITMQ_URL, version {version}")

    def take(self, series: str | None, announce: Announce) -> GivenSupply:  # noqa: ARG002  as every source
        url = os.environ["RABBITMQ_URL"]
        api = management_url_for(url)
        return GivenSupply(url, api, management.version(api))

"""What the environment says of other installations must not reach a private one."""

from __future__ import annotations

import os
from collections.abc import Iterable

from tarry.settings.sources import FILE_VARIABLE, NAMES

ADDRESSES = ("RABBITMQ_URL", "RABBITMQ_MANAGEMENT_URL", "RABBITMQ_CA_FILE", "DATABASE_URL", "HTTP_HOST")
"""Settings that say where an installation is."""

LIBPQ = "PG"
"""Variables that begin so change where and how every Postgres connection is made, whatever its address says."""


def drop_addresses(*, keep: tuple[str, ...] = ()) -> list[str]:
    """Removes them from the environment of this process, and so of the service it starts; returns those it removed."""
    return _drop(name for name in os.environ if name not in keep and (name in ADDRESSES or name.startswith(LIBPQ)))


def drop_settings() -> list[str]:
    """Removes every other setting too, for a run that depends on nothing but the defaults."""
    _drop(name for name in (*NAMES.values(), FILE_VARIABLE) if name not in ADDRESSES)
    return drop_addresses()


def _drop(names: Iterable[str]) -> list[str]:
    found = sorted(name for name in names if os.environ.get(name))
    for name in found:
        del os.environ[name]
    return found

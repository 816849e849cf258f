"""Removes environment variables that refer to other installations, so that they do not affect a private one."""

from __future__ import annotations

import os
from collections.abc import Iterable

from tarry.settings.sources import FILE_VARIABLE, NAMES

ADDRESSES = ("RABBITMQ_URL", "RABBITMQ_MANAGEMENT_URL", "RABBITMQ_CA_FILE", "DATABASE_URL", "HTTP_HOST")
"""Settings that say where an installation is."""

LIBPQ = "PG"
"""The prefix of libpq's variables, which change where and how every Postgres connection is made, whatever its address
says."""


def drop_addresses(*, keep: tuple[str, ...] = ()) -> list[str]:
    """Removes these variables from this process, and so from the service it starts; returns the removed names."""
    return _drop(name for name in os.environ if name not in keep and (name in ADDRESSES or name.startswith(LIBPQ)))


def drop_settings() -> list[str]:
    """Also removes every other setting, for a run that depends only on the defaults."""
    _drop(name for name in (*NAMES.values(), FILE_VARIABLE) if name not in ADDRESSES)
    return drop_addresses()


def _drop(names: Iterable[str]) -> list[str]:
    found = sorted(name for name in names if os.environ.get(name))
    for name in found:
        del os.environ[name]
    return found

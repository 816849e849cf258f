"""Operations of a service through its HTTP API, and the default actor."""

from __future__ import annotations

import getpass
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tarry.operations.remote import RemoteOperations


@asynccontextmanager
async def remote_operations(
    api: str, token: str | None, requested_by: str | None = None
) -> AsyncIterator[RemoteOperations]:
    from tarry.operations.remote import RemoteOperations  # noqa: PLC0415  the HTTP client takes half a second to import

    async with RemoteOperations.open(api, token, requested_by or current_user()) as remote:
        yield remote


def current_user() -> str:
    """The default actor: the user of this terminal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname()}"

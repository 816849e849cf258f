from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tarry.embedded import management

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("port", "node", "expected"),
    [
        (5672, None, True),
        (5672, "fake@localhost", True),
        (5672, "other@localhost", False),
        (5671, "fake@localhost", False),
    ],
)
def test_only_its_own_listener_counts(
    port: int, node: str | None, fake_api: Callable[[int], int], *, expected: bool
) -> None:
    assert management.serves(f"http://guest:guest@127.0.0.1:{fake_api(0)}", port, node) is expected


def test_nobody_there_is_not_ready() -> None:
    assert not management.serves("http://127.0.0.1:1", 5672)

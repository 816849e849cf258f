"""The queues that a token is limited to; and globs of `*` and `?` as SQL patterns. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from tarry.core import globs


def escape_like(text: str) -> str:
    """The text as a part of an SQL LIKE pattern that matches only itself."""
    return text.replace("\x00", "").replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def like(glob: str) -> str:
    """The glob as an SQL LIKE pattern."""
    return escape_like(glob).replace("*", "%").replace("?", "_")


@dataclass(frozen=True, slots=True)
class QueueScope:
    """The queues that a token may see: those that match one of the globs of `*` and `?`."""

    globs: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.globs)

    def allows(self, name: str) -> bool:
        return any(fnmatchcase(name, glob) for glob in self.globs)

    def covers(self, pattern: str) -> bool:
        """Whether every name that the pattern matches is allowed."""
        return self.allows(pattern) and _covers(self.globs, pattern)

    def likes(self) -> list[str]:
        """The globs for `like any(…)` in SQL."""
        return [like(glob) for glob in self.globs]


@lru_cache(maxsize=1_000)
def _covers(wide: tuple[str, ...], narrow: str) -> bool:
    return any(globs.covers(one, narrow) for one in wide)

"""From names and globs on the command line to the queues that are meant."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from tarry.core.names import Names
from tarry.errors import SettingsError


def select(wanted: Iterable[str], there: Iterable[str], names: Names, what: str = "queue") -> list[str]:
    """A name is taken as it is, found or not; a glob stands for what matches, tarry's own and the broker's left out."""
    known = sorted(there)
    chosen: dict[str, None] = {}
    for text in wanted:
        if text in known or not _is_glob(text):
            chosen[text] = None
            continue
        found = [name for name in known if fnmatchcase(name, text) and not names.is_ours(name)]
        if not found:
            raise SettingsError(f"No {what} matches {text!r}: quote globs so that the shell leaves them alone.")
        chosen.update(dict.fromkeys(found))
    return list(chosen)


def _is_glob(text: str) -> bool:
    return any(sign in text for sign in "*?[")

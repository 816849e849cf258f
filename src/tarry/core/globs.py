"""Whether one glob matches everything that another matches. Pure.

Both patterns are treated as automata, and every text that the narrower one matches is run through the wider one. A
pattern distinguishes characters only by its own characters and ranges, so one character of each kind represents all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

MOST_STEPS = 2_000_000
"""About a fifth of a second. Two ordinary patterns need about a thousand steps; malicious ones could take years."""

STAR = "*"
_TOKEN = re.compile(r"\*+|\[!?+\]?+[^\]]*+\]|.", re.DOTALL)
_LAST_LETTER = 0x10FFFF

Kinds = Mapping[str, frozenset[str]]
"""The characters that each token matches."""


@dataclass(slots=True)
class Effort:
    """How many steps all proofs together may still take."""

    left: int = MOST_STEPS


def covers(wide: str, narrow: str, effort: Effort | None = None) -> bool:
    """Whether `wide` matches every text that `narrow` matches. Also False if the proof would take too long."""
    if wide in (STAR, narrow):
        return True
    if "[" not in narrow and not fnmatchcase(narrow.replace(STAR, ""), wide):
        return False  # the shortest text that `narrow` matches decides most cases
    effort = effort or Effort()
    effort.left -= 2 * (len(wide) + len(narrow)) ** 2
    if effort.left <= 0:
        return False
    inner, outer = _tokens(narrow), _tokens(wide)
    return _walk(inner, outer, _kinds({*inner, *outer}), effort)


def _walk(inner: Sequence[str], outer: Sequence[str], kinds: Kinds, effort: Effort) -> bool:
    """Visit every (position in `inner`, positions in `outer`) that one text can reach; bit n is position n."""
    stars = sum(1 << place for place, token in enumerate(outer) if token == STAR)
    moves = {
        letter: sum(1 << place for place, token in enumerate(outer) if token != STAR and letter in kinds[token])
        for letter in kinds[STAR]
    }
    start = (0, 1 | (stars & 1) << 1)
    seen, left = {start}, [start]
    while left and effort.left > 0:
        place, reached = left.pop()
        if place == len(inner):
            if not reached >> len(outer) & 1:
                return False
            continue
        stays = inner[place] == STAR
        found = {(place + 1, reached)} if stays else set()
        for letter in kinds[inner[place]]:
            after = (reached & stars) | (reached & moves[letter]) << 1
            found.add((place + (not stays), after | (after & stars) << 1))
        effort.left -= 10 * len(kinds[inner[place]])
        left.extend(found - seen)
        seen |= found
    return not left


def _tokens(glob: str) -> list[str]:
    """Split as fnmatch does; consecutive stars are one."""
    return [STAR if token.startswith(STAR) else token for token in _TOKEN.findall(glob)]


def _kinds(tokens: Iterable[str]) -> dict[str, frozenset[str]]:
    named = {ord(letter) for token in tokens for letter in token}
    letters = frozenset(map(chr, {0, *named, *(one + 1 for one in named if one < _LAST_LETTER)}))
    known = {STAR: letters, "?": letters}
    return {token: _matching(token, letters) for token in tokens} | known


def _matching(token: str, letters: frozenset[str]) -> frozenset[str]:
    if len(token) == 1:
        return frozenset(token)
    return frozenset(letter for letter in letters if fnmatchcase(letter, token))

"""What this process knows of its latest claims: all there is to tell duplicates by while Postgres is away."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

from tarry.audit.records import Claim, Granted, Record

REMEMBERED = 50_000
"""Claims kept; at full speed that is some ten seconds, and a few megabytes."""


UNCONFIRMED = 0
"""In place of a due moment: claimed, and not known to be anywhere."""

LONG_AGO = 1
"""The due moment of what is in review."""


class Memory:
    """Retry id to the round it is in and the moment that round is due."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._known: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def claim(self, claims: Sequence[Claim]) -> dict[str, Granted]:
        """Those that are not duplicates as far as we know; what we do not know is taken on trust."""
        granted = {one.retry_id: found for one in claims if (found := self._judge(one)) is not None}
        self.remember(granted)
        return granted

    def _judge(self, claim: Claim) -> Granted | None:
        round_, due_ms = self._known.get(claim.retry_id, (0, UNCONFIRMED))
        # A claim that was never confirmed is taken up again: it is not being moved, or we would not be asked.
        takes_over = round_ > 0 and due_ms == UNCONFIRMED and (claim.round == round_ or not claim.knows_round)
        if not takes_over and (claim.round <= round_ if claim.knows_round else self._now_ms() < due_ms):
            return None
        next_round = claim.round if claim.knows_round else round_ if takes_over else round_ + 1
        return Granted(next_round, claim.retry_count, claim.since_ms)

    def remember(self, granted: Mapping[str, Granted]) -> None:
        for retry_id, one in granted.items():
            self._keep(retry_id, one.round, UNCONFIRMED)

    def scheduled(self, records: Iterable[Record]) -> None:
        for record in records:
            self._keep(record.retry_id, record.round, record.due_ms or LONG_AGO)

    def _keep(self, retry_id: str, round_: int, due_ms: int) -> None:
        self._known[retry_id] = (round_, due_ms)
        self._known.move_to_end(retry_id)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

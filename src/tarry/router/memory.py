"""What this process knows of its latest claims: all there is to tell duplicates by while Postgres is away."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

from tarry.audit.records import Claim, Granted, Record

REMEMBERED = 50_000
"""Claims kept; at full speed that is some ten seconds, and a few megabytes."""


UNCONFIRMED = 0
"""In place of a due moment: claimed, and not known to be in a tier."""


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
        # Only a claim that was never confirmed is taken up again by its redelivery.
        takes_over = claim.redelivered and due_ms == UNCONFIRMED
        if not takes_over and (claim.round <= round_ if claim.knows_round else self._now_ms() < due_ms):
            return None
        next_round = claim.round if claim.knows_round else max(round_, 1) if takes_over else round_ + 1
        return Granted(next_round, claim.retry_count, claim.since_ms)

    def remember(self, granted: Mapping[str, Granted]) -> None:
        for retry_id, one in granted.items():
            self._keep(retry_id, one.round, UNCONFIRMED)

    def scheduled(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.due_ms is not None:
                self._keep(record.retry_id, record.round, record.due_ms)

    def _keep(self, retry_id: str, round_: int, due_ms: int) -> None:
        self._known[retry_id] = (round_, due_ms)
        self._known.move_to_end(retry_id)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

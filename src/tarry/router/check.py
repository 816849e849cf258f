"""Decides about messages that are due and wait in the check queue of their policy: asks the policy's endpoint.

    read → ask → report what is not wanted → acknowledge it, and reject the rest

What is rejected returns; so does whatever cannot be read, and whatever there is no answer about. A message is
acknowledged only after the broker has confirmed the report: after a crash in between it is asked about again, and the
second report changes nothing. The report goes through the broker, so Postgres may be away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError, pick
from tarry.amqp.properties import PERSISTENT, Properties
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.contract import headers as h
from tarry.contract.header_reader import RefusalError
from tarry.contract.outcome import CONTENT_TYPE, ReportedSkip, report_of_skips
from tarry.contract.retry_headers import read_retry_headers
from tarry.core.names import Check, Names
from tarry.core.policy import Policy
from tarry.router.batches import BatchResult
from tarry.router.eligibility import EligibilityCheck, value_in
from tarry.router.pipeline import CurrentPipeline, Publish

log = structlog.get_logger()

BATCH = 200

_READ = frozenset(name.encode() for name in (h.ID, h.ROUND))


class DueMessage(NamedTuple):
    """A message of a check queue that its policy's endpoint can be asked about."""

    delivery: Delivery
    retry_id: str
    round: int
    value: str


def read_due(delivery: Delivery, key: str) -> DueMessage | None:
    """None if it has not the header that is asked about, or is not tarry's: it returns."""
    headers = delivery.properties.headers or b""
    try:
        own = read_retry_headers(pick(headers, _READ))
        own.check(h.ID, h.ROUND)
        retry_id, value = own.strict_id(), value_in(headers, key)
    except (RefusalError, BadTableError) as error:
        log.warning("in a check queue, and not readable: it goes on", error=str(error))
        return None
    return None if own.round is None or value is None else DueMessage(delivery, retry_id, own.round, value)


@dataclass(slots=True)
class CheckHandler:
    """The handler of one check queue. It shares the pipeline's rules, and the answers of its endpoints."""

    check: Check
    pipeline: CurrentPipeline
    eligibility: EligibilityCheck
    publish: Publish
    """Publishes the reports."""
    reject: Callable[[Sequence[int]], None]
    """Rejects deliveries, so that they return."""
    count: Callable[[str, str, int], None] = lambda *_: None
    """Counts messages: policy, `returned` or `skipped`, and number."""

    async def __call__(self, batch: Sequence[Delivery]) -> BatchResult:
        try:
            skips = await self._unwanted(batch)
            reported = not skips or await self._report(list(skips.values()))
        except Exception:
            log.exception("a check failed: the messages return", policy=self.check.policy, messages=len(batch))
            skips, reported = {}, True
        returning = [one.tag for one in batch if one.tag not in skips]
        self.reject(returning)
        self.count(self.check.policy, "returned", len(returning))
        if not reported:
            return BatchResult(requeued=list(skips))
        self.count(self.check.policy, "skipped", len(skips))
        return BatchResult(acked=list(skips))

    async def _unwanted(self, batch: Sequence[Delivery]) -> dict[int, ReportedSkip]:
        """The messages that are not wanted any more, by delivery tag."""
        current = self.pipeline.current
        policy: Policy | None = current.rules.checks.get(self.check)
        rule = policy.eligibility if policy is not None else None
        if policy is None or rule is None or rule.key is None:
            return {}
        known = [found for one in batch if (found := read_due(one, rule.key)) is not None]
        by_value: dict[str, list[int]] = {}
        for one in known:
            by_value.setdefault(one.value, []).append(one.delivery.tag)
        reasons, now = await self.eligibility.about(policy, by_value), current.now_ms()
        return {
            one.delivery.tag: ReportedSkip(one.retry_id, one.round, now, reasons[one.delivery.tag])
            for one in known
            if one.delivery.tag in reasons
        }

    async def _report(self, skips: Sequence[ReportedSkip]) -> bool:
        """Whether the broker has confirmed the report."""
        message = report_message(self.pipeline.current.names, skips)
        return await self.publish([message]) == [PublishOutcome.CONFIRMED]


def report_message(names: Names, skips: Sequence[ReportedSkip]) -> Message:
    properties = Properties(content_type=CONTENT_TYPE.encode(), delivery_mode=PERSISTENT)
    return Message(names.reports, "", properties, report_of_skips(skips), f"report:{skips[0].retry_id}")

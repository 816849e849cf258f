"""How long each page takes."""

from __future__ import annotations

import hashlib
import re
import statistics
import time
from collections.abc import Container, Mapping

import httpx

from benchmarks.dashboard.million import ACTOR, COMMON, RARE, a_retry

ERROR = hashlib.md5(b"77", usedforsecurity=False).hexdigest()
"""The fingerprint of one of 500 errors."""

NAMED = {
    "overview": "/",
    "destinations": "/destinations",
    "destination": f"/destinations/one?name={COMMON}",
    "retries": "/retries",
    "retries, state": "/retries?state=held",
    "retries, queue": f"/retries?queue={COMMON}",
    "retries, rare queue": f"/retries?queue={RARE}",
    "retries, no such queue": "/retries?queue=none",
    "retries, policy": "/retries?policy=policy-3",
    "retries, no such policy": "/retries?policy=none",
    "retries, error": "/retries?error=request+77",
    "retries, no such error": "/retries?error=none-like-this",
    "retries, queue and error": f"/retries?queue={COMMON}&error=request+77",
    "retries, queue and no such error": f"/retries?queue={COMMON}&error=none-like-this",
    "retries, rare queue and no such error": f"/retries?queue={RARE}&error=none-like-this",
    "retries, state, queue and no such error": f"/retries?state=in_review&queue={COMMON}&error=none-like-this",
    "retries, owner and no such policy": "/retries?owner=owner-17&policy=none",
    "retries, owner": "/retries?owner=owner-17",
    "retries, message": "/retries?q=m-77777x",
    "retries, due": "/retries?order=due",
    "retries, due, rare queue": f"/retries?order=due&queue={RARE}",
    "retries, due and no such error": "/retries?order=due&error=none-like-this",
    "review, by fingerprint": "/review",
    "review, by queue": "/review?by=queue",
    "review, by reason": "/review?by=reason",
    "review, by owner": "/review?by=owner",
    "review, by age": "/review?by=age",
    "selection, queue": f"/review/selection?queue={COMMON}",
    "selection, reason": "/review/selection?reason=of+4%2C+error",
    "jobs": "/review/jobs",
    "statistics": "/statistics",
    "statistics, 24 hours": "/statistics?since=24h",
    "statistics, a year, queue": f"/statistics?since=365d&queue={COMMON}",
    "policies": "/policies",
    "topology": "/topology",
    "audit": "/audit",
    "action log": "/actions",
    "action log, rare actor": f"/actions?actor={ACTOR}",
    "action log, no such actor": "/actions?actor=nobody",
    "action log, kind": "/actions?kind=pause",
    "action log, no such kind": "/actions?kind=none",
    "action log, target": f"/actions?target={COMMON}",
    "action log, rare target": f"/actions?target={RARE}",
    "action log, no such target": "/actions?target=none",
    "destination, success by attempt": f"/destinations/one?name={COMMON}&attempts=1",
    "retries, fingerprint": f"/retries?fingerprint={ERROR}",
    "retries, due from": "/retries?due_after=2020-01-01T00:00",
    "selection, fingerprint": f"/review/selection?fingerprint={ERROR}",
    "selection, all": "/review/selection?queue=*",
    "stuck": "/stuck",
    "runbook": "/runbook",
}

OF_ALL_QUEUES = frozenset({"policies", "topology", "audit"})
"""Pages that a token which is limited to queues does not have."""

KEY = re.compile(r'name="form_key" value="([0-9a-f]{64})"')


def of_retries(dsn: str) -> dict[str, str]:
    """The page of one retry in each state."""
    return {f"retry, {state}": f"/retries/{a_retry(dsn, state)}" for state in ("scheduled", "in_review", "succeeded")}


def limited_to_queues() -> dict[str, str]:
    return {name: path for name, path in NAMED.items() if name not in OF_ALL_QUEUES}


def log_in(client: httpx.Client, token: str) -> None:
    (key,) = KEY.findall(client.get("/login").text)
    client.post("/login", data={"form_key": key, "token": token})


def are_pages(found: Mapping[str, Mapping[str, float | int]], good: Container[int]) -> bool:
    """Whether each had a status that a page has: an error is fast, and proves nothing."""
    return all(one["status"] in good for one in found.values())


def measured(
    url: str, rounds: int, pages: Mapping[str, str], token: str | None = None
) -> dict[str, dict[str, float | int]]:
    """Milliseconds of each page, the pages taking turns. The first request of each page is counted apart."""
    taken: dict[str, list[float]] = {name: [] for name in pages}
    status: dict[str, int] = {}
    with httpx.Client(base_url=url, timeout=120) as client:
        if token is not None:
            log_in(client, token)
        for _ in range(rounds + 1):
            for name, path in pages.items():
                began = time.perf_counter()
                status[name] = client.get(path).status_code
                taken[name].append(1000 * (time.perf_counter() - began))
    return {
        name: {
            "status": status[name],
            "first": round(found[0]),
            "median": round(statistics.median(found[1:])),
            "p95": round(sorted(found[1:])[int(0.95 * (len(found) - 2))]),
        }
        for name, found in taken.items()
    }

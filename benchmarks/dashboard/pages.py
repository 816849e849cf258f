"""How long each page takes."""

from __future__ import annotations

import statistics
import time

import httpx

from benchmarks.dashboard.million import COMMON, RARE

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
}


def measured(url: str, rounds: int) -> dict[str, dict[str, float | int]]:
    """Milliseconds of each page, the pages taking turns. The first request of each page is counted apart."""
    taken: dict[str, list[float]] = {name: [] for name in NAMED}
    status: dict[str, int] = {}
    with httpx.Client(base_url=url, timeout=120) as client:
        for _ in range(rounds + 1):
            for name, path in NAMED.items():
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

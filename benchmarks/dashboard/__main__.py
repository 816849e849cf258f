"""The dashboard with a million retries in Postgres: how long each page takes, and what viewers cost the router.

python -m benchmarks.dashboard [--quick] [--retries N] [--rounds N] [--broker SERIES] [--only pages|viewers]
                               [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.dashboard import million, pages, viewers
from benchmarks.router.own import serving
from benchmarks.router.stage import stage
from tarry.settings.tokens import Role, new_token

MOST_MS = 300
"""The 95th percentile of every page is below it."""

LEAST = 0.95
"""The router with ten viewers schedules at least this much of what it schedules without."""

LONG = "30m"
"""A delay that nothing comes back from during a measurement."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboard", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--retries", type=int, default=1_000_000, help="how many retries Postgres has")
    parser.add_argument("--broker", metavar="SERIES", help="3.10 or 4.3; default: any that is available")
    parser.add_argument("--rounds", metavar="N", type=int, default=5, help="of the comparison with viewers; default: 5")
    parser.add_argument("--only", choices=("pages", "viewers"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    shown: dict[str, object] = {}
    kept = True
    with stage(asked.broker) as on, on.space(LONG) as space:
        shown["broker"] = on.broker.version
        million.fill(space.dsn, asked.retries)
        if asked.only != "viewers":
            rounds = 10 if asked.quick else 40
            limited, entry = new_token("team", Role.OPERATE, [million.RARE])
            with serving(space) as service:
                every = pages.NAMED | pages.of_retries(space.dsn)
                found = pages.measured(f"http://127.0.0.1:{service.port}", rounds, every)
            with serving(space, API_TOKENS=str(entry), API_RATE="0") as service:
                of_team = pages.measured(f"http://127.0.0.1:{service.port}", rounds, pages.limited_to_queues(), limited)
            shown["pages"], shown["pages of a limited token"] = found, of_team
            kept = all(one["p95"] < MOST_MS for one in (*found.values(), *of_team.values()))
            kept = kept and pages.are_pages(found, {200}) and pages.are_pages(of_team, {200, 404})
        if asked.only != "pages":
            rounds, count = (3, 15_000) if asked.quick else (asked.rounds, 30_000)
            result = viewers.compared(space, rounds=rounds, count=count)
            shown["viewers"] = result
            kept = kept and viewers.ratio_of(result) >= LEAST and not viewers.failed_of(result)
    shown["kept"] = kept
    text = json.dumps(shown, indent=2)
    print(text)
    if asked.json:
        asked.json.write_text(text, encoding="utf-8")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

"""Asks what `tarry status` asks, over and over, as a dashboard with many viewers would; tells how long each took.

python -m benchmarks.contenders.apps.dashboard, with the settings of the service and BENCH_DASHBOARD, a file, set
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tarry.audit.depths import read_depths
from tarry.audit.report import report
from tarry.audit.status import read_counts, read_paused, read_tiers
from tarry.broker.management import Management
from tarry.settings import load_settings

EVERY = 0.5


def main() -> None:
    settings = load_settings()
    names, management = settings.read_topology().broker_names, Management(settings.address)
    with Path(os.environ["BENCH_DASHBOARD"]).open("w", encoding="utf-8") as file:
        while True:
            started = time.perf_counter()
            depths = read_depths(management, names)
            with report(settings.dsn) as books:
                read_counts(books)
                read_tiers(books, depths)
                read_paused(books)
            file.write(f"{time.perf_counter() - started}\n")
            file.flush()
            time.sleep(EVERY)


if __name__ == "__main__":
    main()

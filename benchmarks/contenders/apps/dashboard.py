"""Asks what `tarry status` asks, over and over, as a dashboard with many viewers would; tells how long each took.

python -m benchmarks.contenders.apps.dashboard, with the settings of the service and BENCH_DASHBOARD, a file, set
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from tarry.amqp.management import Management
from tarry.audit.depths import Depths, read_depths
from tarry.audit.status import in_tiers, read_counts, read_paused
from tarry.settings import load_settings
from tarry.store.database import open_session

EVERY = 0.5


def main() -> None:
    settings = load_settings()
    names, management = settings.read_topology().broker_names, Management(settings.address)
    with Path(os.environ["BENCH_DASHBOARD"]).open("w", encoding="utf-8") as file, asyncio.Runner() as runner:
        while True:
            started = time.perf_counter()
            runner.run(_read_store(settings.dsn, read_depths(management, names)))
            file.write(f"{time.perf_counter() - started}\n")
            file.flush()
            time.sleep(EVERY)


async def _read_store(dsn: str, depths: Depths) -> None:
    async with open_session(dsn) as session:
        await read_counts(session)
        in_tiers(await session.rows("open_by_tier"), depths)
        await read_paused(session)


if __name__ == "__main__":
    main()

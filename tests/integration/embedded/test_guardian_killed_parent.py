from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tarry.embedded.guardian import descendants
from tests.support.processes import alive
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.support.spaces import SharedBroker

PARENT = """
import json, sys
from tarry import embedded
with embedded.broker(json.loads(sys.argv[1])) as rabbit, embedded.postgres(durable=False) as pg:
    print(json.dumps([rabbit.pid, str(rabbit.data_dir), pg.pid, str(pg.data_dir)]), flush=True)
    sys.stdin.read()
"""


def test_neither_broker_nor_port_mapper_nor_postgres_nor_data(broker: SharedBroker, series: str | None) -> None:
    command = [sys.executable, "-c", PARENT, json.dumps(series)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        beam, rabbit_data, postmaster, postgres_data = json.loads(parent.stdout.readline())
        pids = descendants(parent.pid)
        assert {beam, postmaster} < set(pids)
        assert Path(rabbit_data).exists()
        parent.kill()
    wait_for(lambda: not any(map(alive, pids)), what=f"all of {pids} to end")
    wait_for(lambda: not Path(rabbit_data).exists(), what="the broker's data to be removed")
    wait_for(lambda: not Path(postgres_data).exists(), what="PostgreSQL's data to be removed")

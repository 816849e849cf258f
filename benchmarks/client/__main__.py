"""make bench-client: what the client adds to a bare consumer, for each message that succeeds.

Bare and with the client in turns of a few hundred messages, on one connection. The promise is about processor time, and
about the quieter half of the turns: on a shared machine everything else also measures the neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import uuid
from pathlib import Path
from typing import Any

import pika

from benchmarks.client.consumers import CONSUMERS
from benchmarks.router.stage import Space, stage
from tarry.amqp.field_tables import table
from tarry.amqp.properties import Properties

OVERHEAD = 0.10
QUEUE = "bench.client"
BODY = b"x" * 512


def main() -> int:
    arguments = _arguments()
    with stage(arguments.broker) as on, on.space("30m") as space:
        rows = [
            _row(space, name, kind, arguments.messages)
            for name in CONSUMERS
            for kind in ("first deliveries", "returned, reported")
        ]
        version = on.broker.version
    kept = all(row["overhead"] < OVERHEAD for row in rows)
    result = {"broker": version, "cores": os.cpu_count(), "python": platform.python_version(), "rows": rows}
    for row in rows:
        print(
            f"{row['consumer']:16} {row['messages']:20} bare {row['bare_us']:6.1f}, client {row['client_us']:6.1f} µs:"
            f" {row['overhead']:+.1%} (all turns {row['all_turns']:+.1%})"
        )
    print(f"RabbitMQ {version}: the client's overhead is {'' if kept else 'NOT '}under {OVERHEAD:.0%} everywhere")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if kept else 1


def _row(space: Space, name: str, kind: str, messages: int) -> dict[str, Any]:
    _fill(space.address.url, messages, returned=kind != "first deliveries")
    turns = CONSUMERS[name](space.address.url, QUEUE, messages)
    # The first turn of each also pays for what is opened, compiled and cached.
    bare, client = sorted(turns.bare[1:]), sorted(turns.client[1:])
    quiet = [statistics.mean(one[: len(one) // 2]) for one in (bare, client)]
    return {
        "consumer": name,
        "messages": kind,
        "bare_us": quiet[0],
        "client_us": quiet[1],
        "overhead": quiet[1] / quiet[0] - 1,
        "all_turns": statistics.median(client) / statistics.median(bare) - 1,
    }


def _fill(url: str, messages: int, *, returned: bool) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        for number in range(messages):
            headers = _headers(returned=returned)
            about: Any = Properties(message_id=str(number).encode(), delivery_mode=2, headers=headers)
            channel.basic_publish("", QUEUE, BODY, about)
        channel.queue_declare(QUEUE, passive=True)


def _headers(*, returned: bool) -> bytes:
    own = {
        "tarry-id": str(uuid.uuid4()),
        "tarry-round": 2,
        "tarry-count": 2,
        "tarry-max-retries": 3,
        "tarry-due-ms": 1_700_000_000_000,
        "tarry-since-ms": 1_700_000_000_000,
        "tarry-queue": QUEUE,
        "tarry-exchange": "",
        "tarry-key": QUEUE,
    }
    return table({"tenant": "acme"} | (own if returned else {}))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", help="series of RabbitMQ: 3.10 or 4.3")
    parser.add_argument("--messages", type=int, default=40_000, help="in each measurement")
    parser.add_argument("--json", help="write the figures to this file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

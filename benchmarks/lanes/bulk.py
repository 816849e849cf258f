"""The consumer of the bulk, in a process of its own: what it does must not delay the clock of the critical consumer."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Iterator

import pika

from tarry.amqp.url import Address


@contextlib.contextmanager
def bulk_consumer(address: Address, queue: str, count: int) -> Iterator[multiprocessing.Queue[float]]:
    """A process that consumes the bulk; the queue gets the moment of the last return."""
    context = multiprocessing.get_context("spawn")
    ended: multiprocessing.Queue[float] = context.Queue()
    process = context.Process(target=_consume, args=(address.url, queue, count, ended))
    process.start()
    try:
        yield ended
    finally:
        process.terminate()
        process.join(15)


def _consume(url: str, queue: str, count: int, ended: multiprocessing.Queue[float]) -> None:
    left = count
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        opened = connection.channel()
        opened.basic_qos(prefetch_count=1_000)
        for method, _, _ in opened.consume(queue):
            left -= 1
            if left % 200 == 0:
                opened.basic_ack(method.delivery_tag or 0, multiple=True)
            if not left:
                ended.put(time.time())
                break

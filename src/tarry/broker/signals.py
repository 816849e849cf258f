"""Signals that must not cut off a write: a broker may record a change and not apply it when its client goes away."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

DEFERRED = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT and SIGTERM that arrive inside take effect at the end. Only the main thread gets signals at all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: dict[int, None] = {}
    handlers = {number: signal.signal(number, lambda got, _frame: arrived.update({got: None})) for number in DEFERRED}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for got in arrived:
            signal.raise_signal(got)

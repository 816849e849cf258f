from __future__ import annotations

import signal
import threading

import pytest

from tarry.amqp.management import uninterrupted


def interrupted_write(steps: list[str]) -> None:
    with uninterrupted():
        signal.raise_signal(signal.SIGINT)
        steps.append("written")


def test_uninterrupted_delivers_a_signal_at_its_end() -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_write(steps)
    assert steps == ["written"]


def test_uninterrupted_inside_another_waits_for_the_outer_end() -> None:
    steps: list[str] = []

    def two_writes() -> None:
        with uninterrupted():
            interrupted_write(steps)
            steps.append("and the next")

    with pytest.raises(KeyboardInterrupt):
        two_writes()
    assert steps == ["written", "and the next"]


def test_uninterrupted_puts_the_handlers_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with uninterrupted():
        assert signal.getsignal(signal.SIGTERM) is not before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_uninterrupted_leaves_signals_alone_outside_the_main_thread() -> None:
    seen: list[object] = []

    def work() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]

"""The switch for the intake of requests: it ends the consumer in use, and tells whether requests are read."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from tarry.amqp.consumer import Consumer
from tarry.service.connections import IntakeSwitch

NOTE = "the intake was paused by anna"


@dataclass
class Reading:
    """Stands for a consumer."""

    finished: bool = False

    def finish(self) -> None:
        self.finished = True


def consumer(reading: Reading) -> Consumer:
    return cast("Consumer", reading)


def test_pausing_ends_the_consumer_in_use() -> None:
    switch, reading = IntakeSwitch(), Reading()
    with switch.using(consumer(reading)):
        assert switch.consuming
        switch.set(NOTE)
        assert reading.finished
    assert (switch.paused, switch.note, switch.consuming) == (True, NOTE, False)


def test_a_pause_while_the_consumer_connects_ends_it_at_once() -> None:
    switch, reading = IntakeSwitch(), Reading()
    switch.set(NOTE)
    with switch.using(consumer(reading)):
        assert reading.finished


def test_another_note_replaces_the_first_and_ends_no_new_consumer() -> None:
    switch = IntakeSwitch()
    switch.set(NOTE)
    switch.set("paused by ben")
    assert (switch.paused, switch.note) == (True, "paused by ben")


def test_resuming_wakes_every_waiter() -> None:
    async def run() -> bool:
        switch = IntakeSwitch()
        await switch.resumed()  # not paused: it does not wait
        switch.set(NOTE)
        waiting = asyncio.create_task(switch.resumed())
        await asyncio.sleep(0)
        assert not waiting.done()
        switch.set(None)
        await waiting
        return switch.paused

    assert asyncio.run(run()) is False


def test_without_a_consumer_there_is_nothing_to_end() -> None:
    switch = IntakeSwitch()
    switch.end_consumer()
    assert not switch.consuming


def test_a_new_connection_can_be_asked_for_without_a_pause() -> None:
    switch, reading = IntakeSwitch(), Reading()
    with switch.using(consumer(reading)):
        switch.end_consumer()
    assert (reading.finished, switch.paused) == (True, False)

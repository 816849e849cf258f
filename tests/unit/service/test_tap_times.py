from __future__ import annotations

import struct

from tarry.amqp.field_tables import Field
from tarry.service.tap import last_death_s, passed_ms

DUE = 1_900_000_000_000


def deaths(*seconds: int) -> Field:
    tables = [b"\x04timeT" + struct.pack(">Q", one) for one in seconds]
    return Field(b"A", b"".join(b"F" + struct.pack(">I", len(one)) + one for one in tables))


def test_a_tap_that_keeps_up_trusts_its_own_clock() -> None:
    assert passed_ms(DUE + 1_900, DUE, deaths(DUE // 1000)) == DUE + 1_900


def test_a_late_tap_takes_the_end_of_the_second_of_the_last_death() -> None:
    assert passed_ms(DUE + 60_000, DUE, deaths(DUE // 1000 - 8, DUE // 1000)) == DUE + 999


def test_a_brokers_wrong_clock_makes_nothing_early_and_nothing_later() -> None:
    assert passed_ms(DUE + 60_000, DUE, deaths(DUE // 1000 - 100)) == DUE
    assert passed_ms(DUE + 60_000, DUE, deaths(DUE // 1000 + 100)) == DUE + 60_000


def test_without_deaths_there_is_only_our_own_clock() -> None:
    assert passed_ms(DUE + 60_000, DUE, None) == DUE + 60_000
    assert last_death_s(Field(b"S", b"x")) is None
    assert last_death_s(deaths()) is None

from __future__ import annotations

from benchmarks.suite.samples import Sample
from benchmarks.suite.scaling import scaling
from tests.unit.benchmarks.results import result

ENOUGH = (
    *(Sample("end to end", "tarry", f"cpu_{part}_s", 10.0) for part in ("own", "broker", "postgres")),
    Sample("drain", "whole way", "per_s", 4000),
)


def test_half_a_run_makes_no_page() -> None:
    assert scaling(result(*ENOUGH[:2])) is None


def test_three_nodes_are_left_open_until_they_are_measured() -> None:
    text = scaling(result(*ENOUGH)) or ""
    assert "Not measured in this run" in text
    assert "| RabbitMQ, three nodes together | not measured |" in text


def test_what_three_nodes_should_do_is_held_against_what_they_did() -> None:
    three = (
        Sample("cluster", "1 node", "per_s", 3000),
        Sample("cluster", "3 nodes", "per_s", 1500),
        Sample("cluster", "3 nodes", "cpu_broker_s", 40.0),
    )
    text = scaling(result(*ENOUGH, *three)) or ""
    assert "spend 4.0 times" in text
    assert "3,000/s on one node become 1,500/s; measured were 1,500/s, 1.00 of that" in text


def test_each_load_has_its_row() -> None:
    text = scaling(result(*ENOUGH)) or ""
    assert "| 100 times, burst | 20,000 | 4 | 4 | 4 | 9 |" in text

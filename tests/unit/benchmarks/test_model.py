from __future__ import annotations

import pytest

from benchmarks.suite.model import BUSY, Model, Needs
from benchmarks.suite.samples import Sample, Samples

COSTS = [Sample("end to end", "tarry", f"cpu_{part}_s", 10.0) for part in ("own", "broker", "postgres")]
DRAIN = Sample("drain", "whole way", "per_s", 4000)


def test_it_is_fitted_from_costs_of_a_hundred_thousand() -> None:
    model = Model.fitted(Samples([*COSTS, DRAIN]))
    assert model == Model(0.0001, 0.0001, 0.0001, 4000, None)


def test_it_is_not_fitted_from_half_a_run() -> None:
    assert Model.fitted(Samples(COSTS)) is None
    assert Model.fitted(Samples([DRAIN])) is None


def test_replication_counts_where_it_was_measured() -> None:
    found = Model.fitted(Samples([*COSTS, DRAIN, Sample("cluster", "3 nodes", "cpu_broker_s", 40.0)]))
    assert found is not None
    assert found.needs(BUSY / 0.0004).broker_cores == 1
    assert found.needs(BUSY / 0.0004 * 1.01).broker_cores == 2


def test_ten_times_the_load_needs_ten_times_as_much() -> None:
    model = Model(0.0001, 0.0002, 0.0001, 4000, None)
    assert model.needs(24_000) == Needs(routers=4, broker_cores=8, postgres_cores=4, queues=10)


def test_the_first_wall_is_where_the_first_part_needs_its_second() -> None:
    walls = Model(0.0002, 0.0004, 0.0001, 1000, None).walls()
    assert min(walls, key=walls.__getitem__) == "one tier, relay or tap queue"
    assert walls["router"] == pytest.approx(3000)

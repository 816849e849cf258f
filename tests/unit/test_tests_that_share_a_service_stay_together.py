from __future__ import annotations

import pytest

from tests.harness.scheduling import ONE_AT_A_TIME, SHARING, company


@pytest.mark.parametrize(
    ("test", "with_whom"),
    [
        ("tests/unit/core/test_ladder.py::test_a[1]", "tests/unit/core/test_ladder.py::test_a[1]"),
        ("tests/integration/api/test_a.py::test_b", "tests/integration/api/test_a.py "),
        ("tests/integration/api/test_a.py::test_b[GET]", "tests/integration/api/test_a.py "),
        ("tests/integration/api/test_a.py::test_b[3.10]", "tests/integration/api/test_a.py 3.10"),
        ("tests/integration/api/test_a.py::test_b[direct-4.3]", "tests/integration/api/test_a.py 4.3"),
        ("tests/integration/api/test_a.py::test_b[4.3-/14.30]", "tests/integration/api/test_a.py 4.3"),
        ("tests/chaos/test_every_fault_loses_nothing.py::test_a[x]", "chaos"),
        ("tests/chaos/test_a_cluster_loses_nothing.py::test_a[x]", "chaos-cluster"),
    ],
)
def test_who_stays_with_whom(test: str, with_whom: str) -> None:
    assert company(test) == with_whom


@pytest.mark.parametrize("named", [*SHARING, *ONE_AT_A_TIME])
def test_what_is_named_is_there(named: str, pytestconfig: pytest.Config) -> None:
    assert (pytestconfig.rootpath / named).exists()

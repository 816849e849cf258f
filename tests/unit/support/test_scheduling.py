from __future__ import annotations

import pytest

from tests.support.scheduling import ONE_AT_A_TIME, SHARING, group


@pytest.mark.parametrize(
    ("test", "with_whom"),
    [
        ("tests/unit/core/test_ladder.py::test_a[1]", "tests/unit/core/test_ladder.py::test_a[1]"),
        ("tests/integration/web/test_a.py::test_b", "tests/integration/web/test_a.py "),
        ("tests/integration/web/test_a.py::test_b[GET]", "tests/integration/web/test_a.py "),
        ("tests/integration/web/test_a.py::test_b[3.10]", "tests/integration/web/test_a.py 3.10"),
        ("tests/integration/web/test_a.py::test_b[direct-4.3]", "tests/integration/web/test_a.py 4.3"),
        ("tests/integration/web/test_a.py::test_b[4.3-/14.30]", "tests/integration/web/test_a.py 4.3"),
        ("tests/chaos/test_faults_all.py::test_a[3.10]", "chaos 3.10"),
        ("tests/chaos/test_faults_cluster.py::test_a[x]", "chaos-cluster "),
    ],
)
def test_who_stays_with_whom(test: str, with_whom: str) -> None:
    assert group(test) == with_whom


@pytest.mark.parametrize("named", [*SHARING, *ONE_AT_A_TIME])
def test_what_is_named_is_there(named: str, pytestconfig: pytest.Config) -> None:
    assert (pytestconfig.rootpath / named).exists()


def test_every_file_that_shares_a_service_is_named(pytestconfig: pytest.Config) -> None:
    """Spread over the workers, each of its tests would start the service anew."""
    root = pytestconfig.rootpath
    places = [one for kind in ("acceptance", "hostile", "integration") for one in (root / "tests" / kind).rglob("*.py")]
    sharing = [str(one.relative_to(root)) for one in places if 'scope="module"' in one.read_text(encoding="utf-8")]
    assert sharing
    assert [one for one in sharing if not one.startswith(SHARING)] == []

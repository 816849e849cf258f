"""The API against its own description: requests made up from it, well-formed and not, by schemathesis.

TARRY_SCHEMATHESIS says how many of them at random for each operation, besides those at the edges of what is described;
the suite makes do with a few.
"""

from __future__ import annotations

import os
from copy import deepcopy
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.checks import load_all_checks, positive_data_acceptance
from schemathesis.core.parameters import ParameterLocation

from tarry.settings import load_settings
from tarry.web.app import make_app
from tests.support.api import OPERATE, ApiInstallation

pytestmark = pytest.mark.one_series

EXAMPLES = int(os.environ.get("TARRY_SCHEMATHESIS", "5"))
AUTHORISED = {"Authorization": f"Bearer {OPERATE}"}

load_all_checks()
NOT_FOR_US = [
    positive_data_acceptance,  # a well-formed request may still meet a retry in the wrong state: that is no mistake
]

tried = count()


@pytest.fixture(scope="module")
def known(api: ApiInstallation) -> dict[str, list[str]]:
    """Real ones, so that not every call ends at `nothing is known by that id`."""
    messages = [f"schemathesis-{number}" for number in range(40)]
    for message in messages:
        api.installation.request(api.installation.declare("slow.schemathesis"), message)
    waiting = [api.installation.retry_of(message) for message in messages]
    for retry in waiting:
        api.wait_state(retry, "scheduled")
    return {"retry_id": waiting, "called": waiting, "name": ["slow.schemathesis", "slow.*"]}


def described() -> Any:
    """Without a service: the requests are made up before there is one."""
    app = make_app(cast("Any", None), load_settings(), cast("Any", SimpleNamespace(store=None, files=None)))
    return app.openapi()


def without_security() -> Any:
    """Every call here has a token: what becomes of those without is another file's story."""
    found = deepcopy(described())
    for operations in found["paths"].values():
        for operation in operations.values():
            operation.pop("security", None)
    return found


description = schemathesis.openapi.from_dict(without_security())


def test_the_service_describes_itself_so(api: ApiInstallation) -> None:
    assert api.get("/openapi.json") == described()


def put_known(case: Case[Any], known: dict[str, list[str]]) -> None:
    """In every other one; a path that is wrong on purpose stays so."""
    number = next(tried)
    path = case.meta.components.get(ParameterLocation.PATH) if case.meta else None
    if number % 2 and case.path_parameters and not (path and path.mode.is_negative):
        chosen = {name: values[number // 2 % len(values)] for name, values in known.items()}
        case.path_parameters |= {name: chosen[name] for name in case.path_parameters if name in chosen}


@description.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize="TARRY_SCHEMATHESIS" not in os.environ,
)
def test_every_answer_is_a_described_one(case: Case[Any], api: ApiInstallation, known: dict[str, list[str]]) -> None:
    put_known(case, known)
    case.call_and_validate(api.url, headers=AUTHORISED, excluded_checks=NOT_FOR_US, timeout=40)

"""Which tests of a run stay together on one worker: those of a file that share a service, for each broker series.

Every other test goes wherever there is room. pytest-xdist's own groups would do the same, but they rename the tests,
and then `--last-failed` does not find some of them again: a second look would pass over them in silence.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling

from tests.harness.wanted import SERIES

SHARING = (
    "tests/hostile/test_hostile_queue_names.py",
    "tests/hostile/test_malicious_text_is_shown_as_text.py",
    "tests/integration/api/",
    "tests/integration/control/test_a_wrong_policy_file_stops_only_what_needs_it.py",
    "tests/integration/control/conftest.py",
    "tests/integration/control/test_ids_by_their_beginning.py",
    "tests/integration/control/test_the_commands_of_an_operator.py",
    "tests/integration/review/",
)
"""Here a service is started once for a file."""

ONE_AT_A_TIME = {"tests/chaos/": "chaos", "tests/chaos/test_a_cluster_loses_nothing.py": "chaos-cluster"}
"""Nothing but waiting and measuring; the longest name that fits counts."""

_SERIES = re.compile(r"\[(?:.*-)?(" + "|".join(map(re.escape, SERIES)) + r")(?:-.*)?\]$")


def company(test: str) -> str:
    """Tests of the same company run one after the other, in one worker."""
    path = test.partition("::")[0]
    if fitting := [start for start in ONE_AT_A_TIME if path.startswith(start)]:
        return ONE_AT_A_TIME[max(fitting, key=len)]
    if path.startswith(SHARING):
        found = _SERIES.search(test)
        return f"{path} {found[1] if found else ''}"
    return test


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no type hints
    """The larger companies first, so that none of them is what the others wait for in the end."""

    def _split_scope(self, nodeid: str) -> str:
        return company(nodeid)

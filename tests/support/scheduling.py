"""Which tests of a run stay together on one worker: those of a file that share a service, for each broker series.

Every other test goes to any free worker. pytest-xdist's own groups would do the same, but they rename the tests,
and then `--last-failed` does not find some of them again.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling

from tests.support.wanted import SERIES

SHARING = (
    "tests/acceptance/test_alerts_of_a_running_service.py",
    "tests/acceptance/test_attach_reject_only_worker.py",
    "tests/acceptance/test_docs_commands_run.py",
    "tests/acceptance/test_docs_contract_languages.py",
    "tests/acceptance/test_due_check.py",
    "tests/acceptance/test_examples.py",
    "tests/acceptance/test_lanes.py",
    "tests/acceptance/test_layover.py",
    "tests/acceptance/test_migrate_guides.py",
    "tests/acceptance/test_s4_stuck.py",
    "tests/hostile/test_queue_names.py",
    "tests/hostile/test_output_malicious_text.py",
    "tests/integration/client/test_conformance.py",
    "tests/integration/events/test_webhooks.py",
    "tests/integration/web/",
    "tests/integration/service/test_metrics.py",
    "tests/integration/operations/test_canary_stage_evidence.py",
    "tests/integration/operations/test_pause.py",
    "tests/integration/operations/test_anomalies.py",
    "tests/integration/operations/test_policies.py",
    "tests/integration/operations/test_statistics.py",
    "tests/integration/operations/test_throttle.py",
    "tests/integration/operations/test_breaker.py",
    "tests/integration/operations/test_budgets.py",
    "tests/integration/operations/test_adaptive.py",
    "tests/integration/operations/test_pause_gates.py",
    "tests/integration/operations/test_cli_invalid_policy_file.py",
    "tests/integration/operations/conftest.py",
    "tests/integration/operations/test_id_prefix.py",
    "tests/integration/operations/test_cli_control.py",
    "tests/integration/operations/test_stuck.py",
    "tests/integration/operations/test_top.py",
    "tests/integration/operations/review/",
    "tests/integration/operations/test_retry_now.py",
    "tests/acceptance/test_s2_runs.py",
    "tests/integration/events/test_read_events.py",
)
"""Files whose tests share one service."""

ONE_AT_A_TIME = {"tests/chaos/": "chaos", "tests/chaos/test_faults_cluster.py": "chaos-cluster"}
"""Groups that run one test at a time; the longest matching path counts."""

_SERIES = re.compile(r"\[(?:.*-)?(" + "|".join(map(re.escape, SERIES)) + r")(?:-.*)?\]$")


def group(test: str) -> str:
    """Tests of the same group run one after the other, on one worker."""
    path = test.partition("::")[0]
    found = _SERIES.search(test)
    series = found[1] if found else ""
    if fitting := [start for start in ONE_AT_A_TIME if path.startswith(start)]:
        return f"{ONE_AT_A_TIME[max(fitting, key=len)]} {series}"
    if path.startswith(SHARING):
        return f"{path} {series}"
    return test


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no type hints
    """Starts the larger groups first, so that the run does not end with a long one."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)

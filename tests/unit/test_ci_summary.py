"""The screen that .ci/run ends with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_quick" time="0.1"/>
<testcase classname="tests.unit.test_a" name="test_slow" time="9.5"/>
<testcase classname="tests.unit.test_b" name="test_broken" time="1">
  <failure message="assert 1 == 2">the trace</failure>
</testcase>
<testcase classname="tests.unit.test_b" name="test_java" time="0"><skipped message="no java on PATH"/></testcase>
</testsuite></testsuites>"""


def run(folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "summary.py", folder], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_ci_summary_names_failures_skips_and_the_slowest(tmp_path: Path) -> None:
    (tmp_path / "steps.tsv").write_text("check\t0\t61\ntest\t2\t400\n")
    (tmp_path / "test.xml").write_text(REPORT)
    screen = run(tmp_path)
    assert "check            passed         1:01" in screen
    assert "test             FAILED (2)     6:40" in screen
    assert "whole            FAILED (2)     7:41" in screen
    assert "2 passed, 1 failed, 1 skipped" in screen
    assert "  FAILED tests/unit/test_b.py::test_broken: assert 1 == 2" in screen
    assert "  skipped 1: no java on PATH" in screen
    assert next(line for line in screen if " s tests" in line) == "  9.5 s tests/unit/test_a.py::test_slow"
    assert "the trace" in (tmp_path / "failures.txt").read_text()
    assert (tmp_path / "durations.tsv").read_text().startswith("9.50\tpassed\ttests/unit/test_a.py::test_slow\n")


def test_ci_summary_fits_one_screen_however_much_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "steps.tsv").write_text("".join(f"step-{number}\t1\t1\n" for number in range(5)))
    one = '<testcase classname="t" name="n{0}" time="1"><{1} message="{2}"/></testcase>'
    wrong = "".join(
        one.format(number, "failure", "x" * 500) + one.format(number, "skipped", number) for number in range(99)
    )
    (tmp_path / "test.xml").write_text(f"<testsuite>{''.join(wrong)}</testsuite>")
    screen = run(tmp_path)
    assert len(screen) < 45
    assert max(map(len, screen)) <= 140
    assert any("and 89 more" in line for line in screen)


def test_ci_summary_of_a_run_without_tests(tmp_path: Path) -> None:
    (tmp_path / "steps.tsv").write_text("check\t0\t5\n")
    assert "0 passed, 0 failed, 0 skipped" in run(tmp_path)

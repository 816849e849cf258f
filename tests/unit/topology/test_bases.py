"""`extends`: what a policy takes from its base, and what a mistake in either is answered with."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tarry.core.policy import Policy
from tarry.errors import TopologyError
from tarry.topology.blueprint import blueprint
from tarry.topology.load import load, shipped_bases
from tarry.topology.model import Topology
from tarry.topology.record import digest
from tests.support.cli import run_cli

LAST = '[[policy]]\nname = "default"\nschedule = ["2s"]\nmax_retries = 1\n'


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TARRY_TOPOLOGY", "DEFAULT_MAX_RETRIES", "BASE_DELAY_MS", "MAX_DELAY_MS"):
        monkeypatch.delenv(name, raising=False)


def read(folder: Path, policies: str, main: str = "") -> Topology:
    (folder / "policies").mkdir(exist_ok=True)
    (folder / "tarry.toml").write_text(main, encoding="utf-8")
    (folder / "policies" / "10-mail.toml").write_text(policies + LAST, encoding="utf-8")
    return load(folder)


def problems(folder: Path, policies: str, main: str = "") -> list[str]:
    with pytest.raises(TopologyError) as caught:
        read(folder, policies, main)
    return [line.removeprefix(f"{folder}/") for line in caught.value.problems]


BASE = """
[[base]]
name = "ours"
extends = "gentle"
max_retries = 9
breaker = { failed = "30%" }
errors = [{ type = "A", class = "final" }]

[[policy]]
name = "mail"
match = { queue = "mail.*" }
extends = "ours"
without = ["max_rate"]
backoff = { cap = "30m" }
errors = [{ type = "B", class = "final" }]
"""


def test_tables_are_merged_and_lists_replaced(tmp_path: Path) -> None:
    mail = read(tmp_path, BASE).policies[0]

    assert mail == Policy.model_validate(
        {
            "name": "mail",
            "match": {"queue": "mail.*"},
            "extends": "ours",
            "without": ["max_rate"],
            "backoff": {"base": "1m", "factor": 2, "cap": "30m"},
            "jitter": "30%",
            "max_retries": 9,
            "breaker": {"failed": "30%", "of": 20, "within": "1m", "wait": "30s", "longest_wait": "15m"},
            "errors": [{"type": "B", "class": "final"}],
        }
    )


LEARNING = """
[[base]]
name = "learning"
max_retries = 1
schedule = ["1s"]
adaptive = { after = 50, try = "10%" }

[[policy]]
name = "more"
match = { queue = "a" }
extends = "learning"
adaptive = { try = "20%" }

[[policy]]
name = "none"
match = { queue = "b" }
extends = "learning"
without = ["adaptive"]
"""


def test_adaptive_is_merged_and_can_be_left_out(tmp_path: Path) -> None:
    first, second, _ = read(tmp_path, LEARNING).policies

    assert first.adaptive is not None
    assert (first.adaptive.after, first.adaptive.still_tried, second.adaptive) == (50, 0.2, None)
    run = run_cli(["policy", "show", "more", "--topology", str(tmp_path)])
    assert "adaptive.try" in run.stdout
    assert '"20%"' in run.stdout


def test_match_is_never_inherited_and_a_schedule_replaces_a_backoff(tmp_path: Path) -> None:
    extended = '[[policy]]\nname = "slow"\nextends = "mail"\nschedule = ["1h"]\nmatch = { job_type = "x" }\n'

    slow = read(tmp_path, BASE + extended).policies[1]

    assert (slow.match.queue, slow.match.job_type) == ("*", "x")
    assert (slow.schedule, slow.backoff, slow.max_retries) == ((3_600_000,), None, 9)


def test_digest_and_broker_objects_are_those_of_the_written_out_policy(tmp_path: Path) -> None:
    short = read(tmp_path, BASE)
    run = run_cli(["policy", "show", "mail", "--toml", "--topology", str(tmp_path)])
    (tmp_path / "long").mkdir()
    long = read(tmp_path / "long", run.stdout)

    assert "extends" not in tomllib.loads(run.stdout)["policy"][0]
    assert digest(short) == digest(long)
    assert blueprint(short) == blueprint(long)


def test_bases_that_nothing_extends_make_no_tiers(tmp_path: Path) -> None:
    base = '[[base]]\nname = "hourly"\nschedule = ["1h"]\nmax_retries = 1\n'

    assert read(tmp_path, base).rules.tiers == {2_000}


@pytest.mark.parametrize("name", [str(one.name) for one in shipped_bases()])
def test_each_shipped_base_is_enough_for_a_policy(tmp_path: Path, name: str) -> None:
    policy = read(tmp_path, f'[[policy]]\nname = "{name}"\nextends = "{name}"\n').policies[0]

    assert policy.max_retries >= 5
    assert policy.tiers()


def test_an_unknown_base_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    assert problems(tmp_path, '[[policy]]\nname = "mail"\nextends = "gentel"\n') == [
        "policies/10-mail.toml:3: policy mail, extends: there is no policy or base `gentel`; did you mean `gentle`?"
    ]


def test_policies_that_extend_each_other_are_refused_with_the_circle(tmp_path: Path) -> None:
    circle = '[[policy]]\nname = "a"\nextends = "b"\n[[policy]]\nname = "b"\nextends = "a"\n'

    assert problems(tmp_path, circle) == [
        "policies/10-mail.toml:3: policy a, extends: extends itself: a → b → a",
        "policies/10-mail.toml:6: policy b, extends: extends itself: b → a → b",
    ]


def test_a_wrong_value_is_reported_once_where_it_is_written(tmp_path: Path) -> None:
    base = '[[base]]\nname = "ours"\nschedule = ["2s"]\njitter = "3x"\nmax_retries = 1\n'
    users = "".join(f'[[policy]]\nname = "p{n}"\nextends = "ours"\n' for n in range(2))

    assert problems(tmp_path, users, main=base) == [
        "tarry.toml:4: base ours, jitter: `3x`: use ms, s, m, h or d, as in 500ms, 2s or 1h30m"
    ]


def test_a_base_that_nothing_extends_is_checked_too(tmp_path: Path) -> None:
    base = '[[base]]\nname = "ours"\nmatch = { queue = "a" }\nbreaker = { fialed = "30%" }\n'

    assert problems(tmp_path, base) == [
        (
            "policies/10-mail.toml:3: base ours, match: a base applies to no messages: `match` belongs in the policies "
            "that extend it"
        ),
        "policies/10-mail.toml:4: base ours, breaker, fialed: no such key; did you mean `failed`?",
    ]


def test_a_contradiction_with_what_is_inherited_names_the_base(tmp_path: Path) -> None:
    base = '[[base]]\nname = "ours"\nschedule = ["2s"]\nmax_retries = 5\nmax_retries_ceiling = 5\n'

    assert problems(tmp_path, base + '[[policy]]\nname = "mail"\nextends = "ours"\nmax_retries = 7\n') == [
        (
            "policies/10-mail.toml:6: policy mail: max_retries_ceiling 5 is below max_retries 7 (with what it inherits "
            "from ours)"
        )
    ]


def test_without_names_only_keys_that_are_inherited(tmp_path: Path) -> None:
    policy = '[[policy]]\nname = "mail"\nextends = "gentle"\nwithout = ["braker"]\n'

    assert problems(tmp_path, policy) == [
        "policies/10-mail.toml:4: policy mail, without: `braker` is no key that is inherited; did you mean `breaker`?"
    ]


def test_show_names_the_file_and_line_of_each_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(tmp_path, BASE)
    monkeypatch.setenv("DEFAULT_MAX_RETRIES", "4")

    mail, default = (
        json.loads(run_cli(["policy", "show", name, "--json", "--topology", str(tmp_path)]).stdout)["policy"]
        for name in ("mail", "default")
    )

    found = {one["key"]: (one["value"], one["origin"], one["table"], one["line"]) for one in mail["values"]}
    assert found["backoff.cap"] == ("30m", "own", "mail", 14)
    assert found["max_retries"] == (9, "inherited", "ours", 5)
    assert found["backoff.base"][:3] == ("1m", "inherited", "gentle")
    assert found["return_to"][:2] == ("queue", "default")
    assert {one["key"]: one["origin"] for one in default["values"]}["max_retries"] == "environment"


def test_show_answers_a_typo_with_the_nearest_name(tmp_path: Path) -> None:
    read(tmp_path, BASE)

    found = run_cli(["policy", "show", "gentl", "--topology", str(tmp_path)])

    assert found.exit_code == 4
    assert "Did you mean 'gentle'?" in found.output

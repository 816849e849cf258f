from __future__ import annotations

import re
from pathlib import Path

import pytest

from tarry.errors import TopologyError
from tarry.topology.load import load, shipped

DOCS = Path(__file__).parents[3] / "docs"

GOOD_POLICY = '[[policy]]\nname = "default"\nschedule = ["2s"]\nmax_retries = 1\n'


def problems(tmp_path: Path, main: str = "", policy: str = GOOD_POLICY) -> list[str]:
    """What load says of these files, without the folder."""
    (tmp_path / "policies").mkdir(exist_ok=True)
    (tmp_path / "tarry.toml").write_text(main, encoding="utf-8")
    (tmp_path / "policies" / "10-mail.toml").write_text(policy, encoding="utf-8")
    with pytest.raises(TopologyError) as caught:
        load(tmp_path)
    return [line.removeprefix(f"{tmp_path}/") for line in caught.value.problems]


def test_the_shipped_topology_has_none() -> None:
    assert [policy.name for policy in load(shipped()).policies][-1] == "default"


def test_a_unit_that_does_not_exist_is_answered_with_those_that_do(tmp_path: Path) -> None:
    policy = '[[policy]]\nname = "mail"\nschedule = ["1m", "2sec"]\nmax_retries = 1\n'

    assert problems(tmp_path, policy=policy) == [
        (
            "policies/10-mail.toml:3: policy mail, schedule, entry 2: `2sec`: use ms, s, m, h or d, "
            "as in 500ms, 2s or 1h30m"
        )
    ]


def test_mistakes_in_two_files_come_together_the_main_file_first(tmp_path: Path) -> None:
    policy = '[[policy]]\nname = "mail"\nschedule = ["2s"]\nmax_retries = -1\njitter = "3x"\nmatch = { que = "a" }\n'

    found = problems(tmp_path, main='destinatons = ["*"]\n[ladder]\nradix = 1\n', policy=policy)

    assert found == [
        "tarry.toml:3: ladder, radix: `1`: should be greater than or equal to 2",
        "tarry.toml:1: destinatons: no such key; did you mean `destinations`?",
        "policies/10-mail.toml:6: policy mail, match, que: no such key; did you mean `queue`?",
        "policies/10-mail.toml:5: policy mail, jitter: `3x`: use ms, s, m, h or d, as in 500ms, 2s or 1h30m",
        "policies/10-mail.toml:4: policy mail, max_retries: `-1`: should be greater than or equal to 0",
    ]


def test_a_key_like_no_other_is_answered_with_all_that_could_stand_there(tmp_path: Path) -> None:
    assert problems(tmp_path, main='[names]\nzzz = "x"\n') == [
        "tarry.toml:2: names, zzz: no such key; known here: prefix, review, scheduled"
    ]


def test_a_missing_key_is_named_with_what_it_is_for(tmp_path: Path) -> None:
    policy = '[[policy]]\nname = "mail"\nbackoff = { base = "2s" }\nmax_retries = 1\n'

    assert problems(tmp_path, policy=policy) == [
        "policies/10-mail.toml:3: policy mail, backoff, cap: is missing: No delay is longer than this, jitter aside."
    ]


def test_an_empty_list_is_named_as_such(tmp_path: Path) -> None:
    policy = '[[policy]]\nname = "mail"\nschedule = []\nmax_retries = 1\n'

    assert problems(tmp_path, policy=policy) == [
        "policies/10-mail.toml:3: policy mail, schedule: is empty: give at least one"
    ]


def test_a_policy_needs_one_way_to_say_its_delays(tmp_path: Path) -> None:
    assert problems(tmp_path, policy='[[policy]]\nname = "mail"\nmax_retries = 1\n') == [
        (
            "policies/10-mail.toml:1: policy mail: give either `schedule` (a list) or `backoff` (base, factor, cap), "
            "and not both"
        )
    ]


def test_a_name_with_a_capital_is_answered_with_the_letters_allowed(tmp_path: Path) -> None:
    policy = GOOD_POLICY.replace("default", "Mail")

    assert problems(tmp_path, policy=policy) == [
        (
            "policies/10-mail.toml:2: policy Mail, name: `Mail`: use small letters, digits, `.`, `_` and `-`, "
            "and start with a letter or digit"
        )
    ]


def test_two_policies_of_one_name_and_a_delay_too_long_are_both_found(tmp_path: Path) -> None:
    too_long = GOOD_POLICY.replace('"2s"', '"400d"')

    found = problems(tmp_path, policy=GOOD_POLICY + too_long)

    assert found == [
        "policies/10-mail.toml:1: policy default: 2 policies have this name: names must differ",
        "policies/10-mail.toml:5: policy default: 2 policies have this name: names must differ",
        (
            "policies/10-mail.toml:7: policy default, schedule: a delay of 400d (jitter included) is more than a year "
            "(366d): shorten it"
        ),
    ]


def test_one_name_in_two_files_names_both_files(tmp_path: Path) -> None:
    assert problems(tmp_path, main=GOOD_POLICY) == [
        "tarry.toml:1: policy default: 2 policies have this name: names must differ",
        "policies/10-mail.toml:1: policy default: 2 policies have this name: names must differ",
    ]


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        ('scheduled = "retry.audit"', "`retry.audit` is the name of another of tarry's queues: choose a different one"),
        (
            'review = "retry.delay.2s"',
            "`retry.delay.2s` is the name of another of tarry's queues: choose a different one",
        ),
        ('scheduled = "a"\nreview = "a"', "scheduled and review are both `a`: they must differ"),
    ],
)
def test_names_that_collide_are_refused(tmp_path: Path, names: str, complaint: str) -> None:
    assert problems(tmp_path, main=f"[names]\n{names}\n") == [f"tarry.toml:1: names: {complaint}"]


def test_a_ladder_beyond_the_longest_ttl_of_a_broker_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, main="[ladder]\nlevels = 12\n")

    assert "a broker holds 49d 17h: use fewer levels" in found


def test_one_bracket_instead_of_two_is_explained(tmp_path: Path) -> None:
    assert problems(tmp_path, policy=GOOD_POLICY.replace("[[policy]]", "[policy]")) == [
        "policies/10-mail.toml: `policy` must be a list of tables: write [[policy]], with two brackets"
    ]


def test_a_policy_file_contains_policies_only(tmp_path: Path) -> None:
    assert problems(tmp_path, policy='[names]\nprefix = "x."\n' + GOOD_POLICY) == [
        "policies/10-mail.toml: names: has no place here; a file in policies/ holds [[policy]] and [[base]] tables"
    ]


def test_a_file_that_is_not_toml_is_named_with_the_line(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, main="# one\n# two\ndestinations = [*]")

    assert found.startswith("tarry.toml: not TOML: ")
    assert "line 3" in found


def test_a_folder_without_a_topology_says_where_one_is(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="TARRY_TOPOLOGY"):
        load(tmp_path)


def test_a_prefix_of_its_own_gives_an_installation_its_own_request_queue(tmp_path: Path) -> None:
    (tmp_path / "tarry.toml").write_text('[names]\nprefix = "b."\n' + GOOD_POLICY, encoding="utf-8")

    assert load(tmp_path).broker_names.scheduled == "b.scheduled"


def test_a_wrong_window_is_answered_with_the_file_and_the_fix(tmp_path: Path) -> None:
    policy = GOOD_POLICY + 'window = { only = "mo-fr 08:00-20:00", zone = "Europe/Zagrb", sprea = "1m" }\n'
    where = "policies/10-mail.toml:5: policy default, window,"

    assert problems(tmp_path, policy=policy) == [
        f"{where} only: `mo-fr 08:00-20:00`: `mo` is not a day; use mon, tue, wed, thu, fri, sat and sun",
        f"{where} zone: `Europe/Zagrb` is not a time zone; did you mean `Europe/Zagreb`?",
        f"{where} sprea: no such key; did you mean `spread`?",
    ]


def test_a_wrong_budget_is_answered_with_the_file_and_the_fix(tmp_path: Path) -> None:
    wrong = 'budget = [{ per = "user", limit = 5, every = "1w", ovr = "skip" }]\n'
    where = "policies/10-mail.toml:5: policy default, budget"
    assert sorted(problems(tmp_path, policy=GOOD_POLICY + wrong)) == [
        f'{where}, entry 1, every: `1w`: write "1h", "1d" or "1mo" (or hour, day, month)',
        f"{where}, entry 1, ovr: no such key; did you mean `over`?",
        f"{where}, entry 1, per: `user`: should be 'owner', 'queue' or 'policy'",
    ]
    small = 'cost = 6\nbudget = { per = "owner", limit = 5, every = "1d", unit = "cost" }\n'
    (no_room,) = problems(tmp_path, policy=GOOD_POLICY + small)
    assert no_room == (
        "policies/10-mail.toml:6: policy default, budget, limit: the budget of 5 of cost per owner and day (UTC) has "
        "no room for one retry of cost 6: raise its limit"
    )
    several = """
budget = [
  { per = "owner", limit = 5, every = "1d" },
  { per = "queue", limit = 5, every = "1h", spread = "50m" },
]
"""
    (spread,) = problems(tmp_path, policy=GOOD_POLICY + several)
    assert spread.startswith(
        "policies/10-mail.toml:8: policy default, budget, entry 2, spread: the budget of 5 retries"
    )
    (twice,) = problems(
        tmp_path,
        policy=GOOD_POLICY + several.replace('"queue", limit = 5, every = "1h"', '"owner", limit = 9, every = "day"'),
    )
    assert twice.startswith("policies/10-mail.toml:8: policy default, budget, entry 2: the budget of 9 retries")


def test_a_wrong_adaptive_is_answered_with_the_file_and_the_fix(tmp_path: Path) -> None:
    wrong = 'adaptive = { give_up_below = "0.01", afer = 20, try = "200%" }\n'
    where = "policies/10-mail.toml:5: policy default, adaptive"
    assert sorted(problems(tmp_path, policy=GOOD_POLICY + wrong)) == [
        f"{where}, afer: no such key; did you mean `after`?",
        f"{where}, give_up_below: `0.01`: use a share above 0% and up to 100%, as in 50%",
        f"{where}, try: `200%`: use a share above 0% and up to 100%, as in 50%",
    ]
    (short,) = problems(tmp_path, policy=GOOD_POLICY + 'adaptive = { lasting = "2d", within = "1d" }\n')
    assert short == f"{where}: lasting 2d is longer than within 1d, the time that counts: shorten it, or count longer"
    (most,) = problems(tmp_path, policy=GOOD_POLICY + 'adaptive = { give_up_below = "60%" }\n')
    assert most == f"{where}, give_up_below: should be at most 50%: most retries of such an error succeed"


def test_a_wrong_max_rate_is_answered_with_the_fix(tmp_path: Path) -> None:
    where = "policies/10-mail.toml"
    (nothing,) = problems(tmp_path, policy=GOOD_POLICY + "max_rate = 0\n")
    assert nothing.startswith(f"{where}:5: policy default, max_rate:")
    (unknown,) = problems(tmp_path, policy=GOOD_POLICY + 'max_rate = 5\nreturn_to = "exchange"\n')
    assert unknown.startswith(f"{where}:5: policy default, max_rate: max_rate limits the returns to a queue")
    assert unknown.endswith("limit the exchange with `tarry throttle exchange:NAME`")


def test_a_wrong_breaker_is_answered_with_the_fix(tmp_path: Path) -> None:
    where = "policies/10-mail.toml"
    (share,) = problems(tmp_path, policy=GOOD_POLICY + 'breaker = { failed = "110%" }\n')
    assert share.startswith(f"{where}:5: policy default, breaker, failed:")
    assert share.endswith("use a share above 0% and up to 100%, as in 50%")
    (wait,) = problems(tmp_path, policy=GOOD_POLICY + 'breaker = { wait = "1h" }\n')
    assert wait.endswith("longest_wait 15m is below wait 1h")
    (unknown,) = problems(tmp_path, policy=GOOD_POLICY + 'breaker = {}\nreturn_to = "exchange"\n')
    assert unknown.startswith(f"{where}:5: policy default, breaker: a breaker holds the returns to a queue")


def test_a_breaker_that_max_rate_keeps_from_opening_is_refused(tmp_path: Path) -> None:
    never = 'max_rate = 2\nbreaker = { of = 20, within = "9s" }\n'
    (problem,) = problems(tmp_path, policy=GOOD_POLICY + never)
    assert problem == (
        "policies/10-mail.toml:6: policy default, breaker, of: it never opens: with max_rate 2 at most 18 messages "
        "return within 9s, and it needs 20: lower `of` to 18 or less, or lengthen `within`"
    )
    (tmp_path / "policies" / "10-mail.toml").write_text(GOOD_POLICY + never.replace("9s", "10s"), encoding="utf-8")
    assert load(tmp_path).policies[0].breaker is not None


def test_windows_that_never_open_together_are_refused(tmp_path: Path) -> None:
    policy = GOOD_POLICY + 'window = [{ only = "sat,sun" }, { never = "sat-sun" }]\n'
    (problem,) = problems(tmp_path, policy=policy)
    assert problem == (
        "policies/10-mail.toml:5: policy default, window: its windows are never open: only sat,sun (UTC); never "
        "sat-sun (UTC)"
    )


def test_a_window_that_leads_beyond_a_year_is_refused(tmp_path: Path) -> None:
    policy = GOOD_POLICY.replace('"2s"', '"360d"') + 'window = { only = "mon 08:00-09:00", spread = "5m" }\n'
    (problem,) = problems(tmp_path, policy=policy)
    assert problem == (
        "policies/10-mail.toml:5: policy default, window: a delay of 360d can become 367d while its window is closed, "
        "which is more than a year (366d): shorten it, or open the window more often"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('breaker = { within = "2h" }', "breaker, within: `2h`: at most 1h"),
        ('breaker = { wait = "10ms" }', "breaker, wait: `10ms`: at least 1s"),
        ('eligibility = { at = "due", answer_within = "2d" }', "eligibility, answer_within: `2d`: at most 1d"),
        ('stuck_after = "0s"', "stuck_after: `0s`: at least 1ms"),
        (
            "breaker = true",
            "breaker: `True`: write a table in { }, with some of the keys failed, longest_wait, of, wait, within",
        ),
        (
            'window = "mon-fri"',
            (
                "window: `mon-fri`: write a table in { }, or a list of them, "
                "with some of the keys never, only, spread, zone"
            ),
        ),
        ("max_rate = true", "max_rate: `true`: write a whole number, without quotation marks"),
        ('max_rate = "50"', 'max_rate: `"50"`: write a whole number, without quotation marks'),
        ("breaker = { of = true }", "breaker, of: `true`: write a whole number, without quotation marks"),
        ("max_rate = 1.5", "max_rate: `1.5`: write a whole number, without quotation marks"),
        (
            'backoff = { base = "1s", cap = "1m", factor = "2" }',
            'backoff, factor: `"2"`: write a number, without quotation marks',
        ),
        ('cost = "2"', 'cost: `"2"`: write a whole number, without quotation marks'),
        (
            'budget = { per = "owner", limit = true, every = "1d" }',
            "budget, limit: `true`: write a whole number, without quotation marks",
        ),
        ('schedule = "1s"', 'schedule: `1s`: write a list in [ ], as in ["1m", "5m"]'),
        ('eligibility = { url_env = "1X", key = "d" }', "eligibility, url_env: `1X`: use letters, digits and `_`"),
    ],
)
def test_a_bad_value_is_answered_in_the_terms_of_the_file(tmp_path: Path, line: str, message: str) -> None:
    given = 'name = "mail"\nmax_retries = 1\n' + ("" if "schedule" in line else 'schedule = ["2s"]\n')
    found = problems(tmp_path, policy=f"[[policy]]\n{given}{line}\n")
    assert found[0].partition(": policy mail, ")[2] == message


BLOCKS = re.findall(r"```toml\n(.*?)```", (DOCS / "policies.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n")[1][:40] or block[:40])
def test_every_example_of_the_page_about_policies_loads(tmp_path: Path, block: str) -> None:
    whole = block if "[[policy]]" in block else f"{GOOD_POLICY}{block}"
    (tmp_path / "tarry.toml").write_text(whole, encoding="utf-8")
    assert load(tmp_path).policies


@pytest.mark.parametrize("lane", ["Gold", "gold.eu", "gold~1", "", "-gold", "g" * 32])
def test_a_wrong_lane_is_answered_with_the_file_and_the_fix(tmp_path: Path, lane: str) -> None:
    assert problems(tmp_path, policy=GOOD_POLICY + f'lane = "{lane}"\n') == [
        (
            f"policies/10-mail.toml:5: policy default, lane: `{lane}`: use small letters, digits, `_` and `-`, "
            "31 at the most, and start with a letter or digit"
        )
    ]

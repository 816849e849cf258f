"""Commands that may take long show their progress on a terminal, and only there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.cli import TARRY, run_process
from tests.support.installation import Installation
from tests.support.pseudo_terminal import PseudoTerminal

pytestmark = pytest.mark.one_series

LONG = {
    "audit verify --patience 0s": "Comparing the audit with the broker",
    "audit prune --older-than 30d": "Deleting",
    "topology verify": "Reading the broker",
    "attach orders": "attaching",
    "advise": "Reading the history",
    "stats": "Counting",
    "cancel nobody": "cancelling",
}
"""Commands, and what they show while they work."""


@pytest.fixture
def prepared(installation: Installation) -> Installation:
    installation.declare("orders")
    run_process(["audit", "migrate"], installation.environment)
    run_process(["attach", "orders"], installation.environment)
    return installation


def on_terminal(installation: Installation, words: Sequence[str]) -> str:
    with PseudoTerminal([*TARRY, *words], installation.environment) as terminal:
        terminal.wait_exit()
        return terminal.plain


def test_progress_is_shown_on_a_terminal(prepared: Installation) -> None:
    shown = {words: on_terminal(prepared, words.split()) for words in LONG}
    assert {words: text for words, text in LONG.items() if text not in shown[words]} == {}


def test_progress_is_not_shown_with_json_or_in_a_pipe(prepared: Installation) -> None:
    shown = {words: on_terminal(prepared, [*words.split(), "--json"]) for words in LONG}
    assert [words for words, text in LONG.items() if text in shown[words]] == []
    words, text = next(iter(LONG.items()))
    done = run_process(words.split(), prepared.environment)
    assert (done.returncode, text in done.stdout + done.stderr, done.stderr) == (0, False, "")

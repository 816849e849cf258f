from __future__ import annotations

import base64
import json
from dataclasses import asdict, replace

import pytest

from tarry.settings.tokens import Role, new_token
from tarry.web.dashboard.sessions import LASTS, MOST_ENDED, Sessions

_, OPS = new_token("ops", Role.OPERATE)
_, VIEWER = new_token("viewer", Role.LOOK)
KEY = b"k" * 32


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions([OPS, VIEWER], KEY, clock)


def test_a_session_is_read_back_with_its_token(sessions: Sessions) -> None:
    begun = sessions.begin(OPS, "alice")
    found = sessions.read(sessions.cookie_of(begun))
    assert found == begun
    assert sessions.token_of(begun) == OPS


def test_a_session_expires(sessions: Sessions, clock: Clock) -> None:
    cookie = sessions.cookie_of(sessions.begin(OPS))
    clock.now += LASTS - 1
    assert sessions.read(cookie) is not None
    clock.now += 1
    assert sessions.read(cookie) is None


def test_a_session_that_was_ended_stays_ended(sessions: Sessions) -> None:
    begun = sessions.begin(OPS)
    sessions.end(begun)
    assert sessions.read(sessions.cookie_of(begun)) is None


def test_ended_sessions_are_remembered_up_to_a_number(sessions: Sessions) -> None:
    ended = [sessions.begin(OPS) for _ in range(MOST_ENDED + 5)]
    for one in ended:
        sessions.end(one)
    assert sessions.read(sessions.cookie_of(ended[-1])) is None
    assert len(sessions._ended) == MOST_ENDED


def test_a_session_ends_with_its_token(clock: Clock, sessions: Sessions) -> None:
    cookie = sessions.cookie_of(sessions.begin(OPS))
    _, replaced = new_token("ops", Role.OPERATE)
    assert Sessions([OPS], KEY, clock).read(cookie) is not None
    assert Sessions([VIEWER], KEY, clock).read(cookie) is None
    assert Sessions([replaced], KEY, clock).read(cookie) is None


def test_a_session_of_another_key_is_refused(clock: Clock, sessions: Sessions) -> None:
    cookie = sessions.cookie_of(sessions.begin(OPS))
    assert Sessions([OPS], b"x" * 32, clock).read(cookie) is None
    assert Sessions([OPS], None, clock).read(cookie) is None


def test_a_changed_cookie_is_refused(sessions: Sessions) -> None:
    begun = sessions.begin(VIEWER)
    signature = sessions.cookie_of(begun).partition(".")[2]
    raised = json.dumps(asdict(replace(begun, token="ops")))
    forged = base64.urlsafe_b64encode(raised.encode()).decode().rstrip("=")
    assert sessions.read(f"{forged}.{signature}") is None


@pytest.mark.parametrize("cookie", ["", ".", "x", "x.y", "bnVsbA.x", "W10.x", "\udcff.\udcff", "é.é", "e30.x" * 10_000])
def test_nonsense_in_the_cookie_is_no_session(sessions: Sessions, cookie: str) -> None:
    assert sessions.read(cookie) is None


def test_forms_of_two_sessions_have_different_keys(sessions: Sessions) -> None:
    one, other = sessions.begin(OPS), sessions.begin(OPS)
    assert sessions.form_key(one) == sessions.form_key(one)
    assert sessions.form_key(one) != sessions.form_key(other)


def test_a_signature_counts_for_one_purpose_only(sessions: Sessions) -> None:
    signed = sessions.sign("notice", "text")
    assert sessions.verified("notice", signed) == "text"
    assert sessions.verified("session", signed) is None

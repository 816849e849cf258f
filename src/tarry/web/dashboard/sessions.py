"""Sessions: signed cookies. Nothing is stored on the server except the sessions that were ended before their time."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from tarry.settings.tokens import Token

LASTS = 12 * 3600
"""Seconds after which one has to log in again."""

MOST_ENDED = 10_000
"""The most ended sessions that are remembered, the latest ones."""


@dataclass(frozen=True, slots=True)
class Session:
    """One browser. Before the login it has no token, and serves only to protect the login form."""

    id: str
    token: str | None
    """The name of the token."""
    person: str | None
    """Who uses the token, as given at the login."""
    expires: int


LOCAL = Session("local", None, None, 0)
"""The only session of a service without tokens; it has no cookie."""


class Sessions:
    """Issues and reads the cookies.

    The signature of a session covers the hash of its token, so a session ends when its token is removed or replaced.
    """

    def __init__(
        self, tokens: Sequence[Token], key: bytes | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.tokens = tuple(tokens)
        self._tokens = {token.name: token for token in tokens}
        self._key = key or secrets.token_bytes(32)
        self._clock = clock
        self._ended: dict[str, int] = {}

    def begin(self, token: Token | None = None, person: str | None = None) -> Session:
        expires = int(self._clock()) + LASTS
        return Session(secrets.token_urlsafe(16), token.name if token else None, person, expires)

    def cookie_of(self, session: Session) -> str:
        return self.sign("session", json.dumps(asdict(session)), self._digest(session.token))

    def read(self, cookie: str) -> Session | None:
        """None if it is forged, expired or ended, or if its token is no longer valid.

        Before the signature is verified, anything can be in it: values of any type, and any depth.
        """
        try:
            found = Session(**json.loads(_decoded(cookie)))
            is_known = found.token is None or found.token in self._tokens
        except (ValueError, TypeError, RecursionError):
            return None
        if not is_known or self.verified("session", cookie, self._digest(found.token)) is None:
            return None
        is_over = found.expires <= self._clock() or found.id in self._ended
        return None if is_over else found

    def end(self, session: Session) -> None:
        if session.token is None:
            return
        self._ended[session.id] = session.expires
        oldest, expires = next(iter(self._ended.items()))
        if len(self._ended) > MOST_ENDED or expires <= self._clock():
            del self._ended[oldest]

    def token_of(self, session: Session) -> Token | None:
        return self._tokens.get(session.token or "")

    def form_key(self, session: Session) -> str:
        """The value that every form of this session contains, and that no page of another site can know."""
        return self._mac("form", session.id.encode(), "")

    def digest(self, text: str) -> str:
        """The same for the same text, in all sessions."""
        return self._mac("digest", text.encode(), "")

    def sign(self, purpose: str, text: str, more: str = "") -> str:
        body = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        return f"{body}.{self._mac(purpose, body.encode(), more)}"

    def verified(self, purpose: str, signed: str, more: str = "") -> str | None:
        """The text; None if its signature is wrong."""
        body, _, mac = signed.partition(".")
        wanted = self._mac(purpose, body.encode("utf-8", "surrogateescape"), more)
        if not hmac.compare_digest(wanted.encode(), mac.encode("utf-8", "surrogateescape")):
            return None
        return _decoded(signed)

    def _digest(self, token: str | None) -> str:
        return self._tokens[token].digest if token is not None else ""

    def _mac(self, purpose: str, body: bytes, more: str) -> str:
        return hmac.new(self._key, b"\0".join([purpose.encode(), more.encode(), body]), hashlib.sha256).hexdigest()


def _decoded(signed: str) -> str:
    """The text of a cookie, unverified; raises ValueError if it has none."""
    body = signed.partition(".")[0]
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True).decode()
    except binascii.Error as error:
        raise ValueError(str(error)) from None

"""What is said of one failure: bounded in size, and with nothing in it that the redaction hook takes out."""

from __future__ import annotations

from dataclasses import dataclass

from tarry.client.classing import PLAIN, Verdict
from tarry.client.options import Options
from tarry.core.fingerprint import fingerprint

LONGEST_TYPE = 200


@dataclass(frozen=True, slots=True)
class Failure:
    """An error, as it travels."""

    error_type: str
    error_reason: str
    verdict: Verdict = PLAIN

    @property
    def fingerprint(self) -> str | None:
        """The same that the audit makes of it: one name for errors that differ only in numbers and ids."""
        return fingerprint(self.error_type, self.error_reason)


def describe(error: BaseException, options: Options, now_ms: int) -> Failure:
    """Never raises: a hook or a `__str__` that fails must not cost the message its retry."""
    return Failure(type_name(error), _reason(error, options), _verdict(error, options, now_ms))


def type_name(error: BaseException) -> str:
    """`ValueError`, `httpx.ReadTimeout`, `shop.errors.CardDeclined`: what a policy's rules match with a glob."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return name[-LONGEST_TYPE:]


def _reason(error: BaseException, options: Options) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - any code may be behind it
        text = "(its text could not be made)"
    try:
        text = options.redact(text) if options.redact else text
    except Exception as failed:  # noqa: BLE001 - the user's code
        text = f"(its text was withheld: the redaction hook failed with {type_name(failed)})"
    printable = text.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()
    return printable if len(printable) <= options.longest_reason else printable[: options.longest_reason - 1] + "…"


def _verdict(error: BaseException, options: Options, now_ms: int) -> Verdict:
    try:
        return options.classes.judge(error, now_ms)
    except Exception:  # noqa: BLE001 - the user's code
        return PLAIN

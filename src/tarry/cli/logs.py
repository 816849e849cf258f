"""How log lines look: JSON for machines, colours for people."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import structlog

from tarry.cli.printable import printable, printable_json
from tarry.router.actions import Action, log_actions


def set_up_logs(style: Literal["json", "console"], service: str) -> None:
    """One line per event to standard error; libraries only when something is wrong."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    # Every lost connection would print pika's own view of it in a dozen lines; ours says it in one.
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)
    as_json: list[structlog.typing.Processor] = [
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(serializer=_as_json),
    ]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(as_json if style == "json" else [_for_eyes, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)


def _as_json(event: Any, **kwargs: Any) -> str:
    """Logs are read on terminals too: an error text of somebody's must not be able to clear the screen."""
    return printable_json(json.dumps(event, ensure_ascii=False, **kwargs))


def _for_eyes(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}


def action_writer(style: Literal["json", "console"], service: str) -> Callable[[Sequence[Action]], None]:
    """How the many lines of scheduling actions are written: the same lines as any other, for people or machines."""
    return JsonActions(service, sys.stderr) if style == "json" else log_actions


class JsonActions:
    """A batch of actions as JSON lines in one write: a twentieth of what a general logger takes for them."""

    def __init__(self, service: str, out: TextIO) -> None:
        self._service = service
        self._out = out
        self._encode = json.JSONEncoder(ensure_ascii=False).encode

    def __call__(self, found: Sequence[Action]) -> None:
        if found:
            at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            common = {"service": self._service, "level": "info", "timestamp": at}
            self._out.write(printable_json("\n".join([self._encode({**common, **action}) for action in found])) + "\n")
            self._out.flush()

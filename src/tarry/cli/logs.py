"""Format of log lines: JSON for machines, colours for people."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import structlog

from tarry.cli.output import printable_json
from tarry.core.printable import printable
from tarry.router.actions import Action, log_actions


def set_up_logs(style: Literal["json", "console"], service: str) -> None:
    """One line per event to standard error; from libraries only warnings and errors."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    # Pika logs each lost connection in a dozen lines; our event is one line.
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
            *(
                as_json
                if style == "json"
                else [_escape_values, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)


def set_up_command_logs(level: int = logging.WARNING) -> None:
    """For commands: only warnings, to standard error; standard output is for the answer, which may be JSON."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def _as_json(event: Any, **kwargs: Any) -> str:
    """Logs are read on terminals too: a text from outside must not be able to clear the screen."""
    return printable_json(json.dumps(event, ensure_ascii=False, **kwargs))


def _escape_values(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}


def action_writer(style: Literal["json", "console"], service: str) -> Callable[[Sequence[Action]], None]:
    """Writes the many lines of scheduling actions, in the same format as other lines."""
    return JsonActions(service, sys.stderr) if style == "json" else log_actions


class JsonActions:
    """Writes a batch of actions as JSON lines at once, in a twentieth of the time of a general logger."""

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

"""The hierarchy of errors, and their stable codes. Every message says what happened, to what, and what to do next.

TarryError
├── SettingsError          a setting, flag or environment variable is wrong
├── TopologyError          the topology files are wrong (all errors at once)
│   ├── DelayTooLongError  a delay that is longer than a year
│   └── NotDrainableError  the named queue is not a tier that can be drained
├── BrokerError            RabbitMQ refused a request, or cannot be reached
│   ├── BrokerUnreachableError
│   ├── BrokerTooOldError
│   ├── MissingOnBrokerError   a named queue or exchange does not exist
│   └── TopologyMismatchError  the broker differs from the topology
├── AuditError             Postgres refused a request, or cannot be reached
│   └── AuditUnavailableError
├── ControlError           an operator's action could not be carried out
│   ├── NotFoundError          nothing is known by that id or name
│   ├── ConflictError          another operation is in progress
│   │   └── AmbiguousIdError       more than one matches the id; the message lists them
│   ├── WrongStateError        its state does not allow the action
│   ├── InsufficientCreditsError  the credit check refused a manual retry
│   ├── CheckUnavailableError  the credit check gave no answer
│   └── ForbiddenError         the token is limited to some queues, and the action is not
├── SourceError            the database that an import reads from refused, or cannot be reached
├── OutputError            the output of a command cannot be written
├── ApiError               the HTTP API cannot be reached, or refused access
└── EmbeddedError          the private broker or Postgres is not available or did not start
    ├── NoBrokerError
    └── StartupError
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Self


class Code(StrEnum):
    """The stable code of an error, the same in HTTP problems and in JSON output, with its HTTP status and exit code.

    The table in docs/api.md lists them. Without a status, only commands have the error; one that only HTTP has exits
    with 1 in a command that uses the API.
    """

    status: int | None
    exit_code: int

    def __new__(cls, value: str, status: int | None, exit_code: int) -> Self:
        made = str.__new__(cls, value)
        made._value_ = value
        made.status = status
        made.exit_code = exit_code
        return made

    @classmethod
    def named(cls, text: object) -> Code | None:
        """None if there is no such code."""
        return next((one for one in cls if one.value == text), None)

    # An action on a retry, a message, a destination or a job
    NOT_FOUND = "not_found", 404, 4
    AMBIGUOUS_ID = "ambiguous_id", 409, 5
    ALREADY_RETURNED = "already_returned", 409, 5
    ALREADY_REQUESTED = "already_requested", 409, 5
    BEING_PROCESSED = "being_processed", 409, 5
    PAYLOAD_UNAVAILABLE = "payload_unavailable", 409, 5
    DESTINATION_PAUSED = "destination_paused", 409, 5
    TOO_MANY_IN_PROGRESS = "too_many_in_progress", 409, 5
    NOT_IN_REVIEW = "not_in_review", 404, 4
    CANNOT_REDRIVE = "cannot_redrive", 409, 5
    INVALID_STATE = "invalid_state", 400, 6
    CANCELLED = "cancelled", 400, 6
    REFUSED = "refused", 400, 1
    INSUFFICIENT_CREDITS = "insufficient_credits", 402, 8
    CHECK_UNAVAILABLE = "check_unavailable", 503, 1

    # The request itself
    INVALID_REQUEST = "invalid_request", 422, 2
    UNAUTHORIZED = "unauthorized", 401, 1
    FORBIDDEN = "forbidden", 403, 1
    METHOD_NOT_ALLOWED = "method_not_allowed", 405, 1
    BODY_TIMEOUT = "body_timeout", 408, 1
    REQUEST_IN_PROGRESS = "request_in_progress", 409, 5
    BODY_TOO_LARGE = "body_too_large", 413, 1
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type", 415, 1
    WRONG_HOST = "wrong_host", 421, 1
    KEY_REUSED = "key_reused", 422, 2
    RATE_LIMITED = "rate_limited", 429, 1
    OVERLOADED = "overloaded", 503, 1
    TIMEOUT = "timeout", 504, 1

    # The installation
    TOPOLOGY_INVALID = "topology_invalid", 422, 7
    MISSING_ON_BROKER = "missing_on_broker", 404, 1
    BROKER_UNREACHABLE = "broker_unreachable", 503, 1
    BROKER_REFUSED = "broker_refused", 503, 1
    AUDIT_UNAVAILABLE = "audit_unavailable", 503, 1
    AUDIT_REFUSED = "audit_refused", 500, 1
    INTERNAL = "internal", 500, 1

    # Commands only
    NOT_DRAINABLE = "not_drainable", None, 2
    API_UNREACHABLE = "api_unreachable", None, 1
    SOURCE_FAILED = "source_failed", None, 1
    OUTPUT_FAILED = "output_failed", None, 1
    EMBEDDED_FAILED = "embedded_failed", None, 1


class TarryError(Exception):
    """Base class of tarry's errors; the CLI prints the message and exits with the exit code of `code`."""

    code: Code = Code.INTERNAL

    @property
    def exit_code(self) -> int:
        return self.code.exit_code

    @property
    def details(self) -> Mapping[str, int | float | None]:
        """More fields for HTTP problems and JSON output."""
        return {}


class SettingsError(TarryError):
    """A setting, flag or environment variable has a value that cannot be used."""

    code = Code.INVALID_REQUEST


class TopologyError(TarryError):
    """The topology files contain errors; `problems` has one line for each."""

    code = Code.TOPOLOGY_INVALID

    def __init__(self, problems: str | list[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else problems
        super().__init__("\n".join(self.problems))


class DelayTooLongError(TopologyError):
    """A delay is longer than a message can wait; it is refused, never rounded down."""


class NotDrainableError(TopologyError):
    """The named queue is not a tier, does not exist, or is in use."""

    code = Code.NOT_DRAINABLE


class BrokerError(TarryError):
    """RabbitMQ refused a request."""

    code = Code.BROKER_REFUSED


class BrokerUnreachableError(BrokerError):
    """RabbitMQ did not answer at the given address."""

    code = Code.BROKER_UNREACHABLE


class BrokerTooOldError(BrokerError):
    """The broker is older than the oldest series tarry is tested on."""


class MissingOnBrokerError(BrokerError):
    """A named queue or exchange does not exist on the broker."""

    code = Code.MISSING_ON_BROKER


class TopologyMismatchError(BrokerError):
    """What is declared on the broker differs from the topology files."""


class GivenUpError(BrokerError):
    """The broker has delivered these requests to another router meanwhile, which handles them."""

    def __init__(self) -> None:
        super().__init__(type(self).__doc__ or "")


class AuditError(TarryError):
    """Postgres refused a request."""

    code = Code.AUDIT_REFUSED


class AuditUnavailableError(AuditError):
    """Postgres did not answer; retries continue, and their history is written later."""

    code = Code.AUDIT_UNAVAILABLE


class ControlError(TarryError):
    """An operator's action could not be carried out as requested; nothing was changed."""

    code = Code.REFUSED

    def __init__(self, message: str, code: Code | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class NotFoundError(ControlError):
    """Nothing is known by that id or name."""

    code = Code.NOT_FOUND


class ConflictError(ControlError):
    """It is being processed, its state has changed, or the same request was made before."""

    code = Code.BEING_PROCESSED


class AmbiguousIdError(ConflictError):
    """The id or prefix matches more than one; the message lists them."""

    code = Code.AMBIGUOUS_ID


class WrongStateError(ControlError):
    """Its state does not allow the action; the message names the state."""

    code = Code.INVALID_STATE


class InsufficientCreditsError(ControlError):
    """The credit check answered that there are too few credits for a manual retry."""

    code = Code.INSUFFICIENT_CREDITS

    def __init__(self, message: str, required: float | None = None, available: float | None = None) -> None:
        super().__init__(message)
        self.required = required
        self.available = available

    @property
    def details(self) -> Mapping[str, int | float | None]:
        return {"required": self.required, "available": self.available}


class CheckUnavailableError(ControlError):
    """The credit check gave no answer, or one that is neither yes nor no."""

    code = Code.CHECK_UNAVAILABLE


class ForbiddenError(ControlError):
    """The token is limited to some queues, and the action concerns others as well."""

    code = Code.FORBIDDEN


class SourceError(TarryError):
    """The database that an import reads from refused a request, or cannot be reached."""

    code = Code.SOURCE_FAILED


class OutputError(TarryError):
    """The output of a command cannot be written, for example to a full disk. The command itself was executed."""

    code = Code.OUTPUT_FAILED


class ApiError(TarryError):
    """The HTTP API of a service did not answer, refused access, or failed."""

    code = Code.API_UNREACHABLE


class EmbeddedError(TarryError):
    """The private broker or Postgres is not available."""

    code = Code.EMBEDDED_FAILED


class NoBrokerError(EmbeddedError):
    """No source of a broker works on this machine; the message lists the alternatives."""


class StartupError(EmbeddedError):
    """A private service did not start; the message contains the end of its log."""

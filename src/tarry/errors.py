"""One tree of errors. Every message says what happened, to what, and what to do next.

TarryError
├── SettingsError          a setting, flag or environment variable is wrong
├── TopologyError          the topology files are wrong (all mistakes at once)
│   ├── DelayTooLongError  a delay that the ladder cannot hold
│   └── NotDrainableError  a queue that was named is not a tier that can be retired
├── BrokerError            RabbitMQ said no, or cannot be reached
│   ├── BrokerUnreachableError
│   ├── BrokerTooOldError
│   ├── MissingOnBrokerError   a queue or exchange that was named is not there
│   └── TopologyMismatchError  the live broker is not what the topology says
├── AuditError             Postgres said no, or cannot be reached
│   └── AuditUnavailableError
├── ControlError           an operator's action could not be done as asked
│   ├── NotFoundError          nothing is known by that id or name
│   ├── ConflictError          somebody or something else has it right now
│   │   └── AmbiguousIdError       more than one fits that id; the message lists them
│   └── WrongStateError        it is not in a state in which that can be done
├── OutputError            what a command answers cannot be written
├── ApiError               the HTTP API cannot be reached, or did not let us in
└── EmbeddedError          the private broker or Postgres could not be had or started
    ├── NoBrokerError
    └── StartupError
"""

from __future__ import annotations


class TarryError(Exception):
    """Base of everything tarry raises on purpose; the CLI prints it as one message and exits with `exit_code`."""

    exit_code = 1


class SettingsError(TarryError):
    """A setting, flag or environment variable has a value that cannot be used."""

    exit_code = 2


class TopologyError(TarryError):
    """The topology files hold mistakes; `problems` has one line for each."""

    exit_code = 7

    def __init__(self, problems: str | list[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else problems
        super().__init__("\n".join(self.problems))


class DelayTooLongError(TopologyError):
    """A delay is longer than the ladder can hold; it is refused, never rounded down."""


class NotDrainableError(TopologyError):
    """A queue that was named is not a tier, is not there, or is in use."""

    exit_code = 2


class BrokerError(TarryError):
    """RabbitMQ refused something."""


class BrokerUnreachableError(BrokerError):
    """RabbitMQ did not answer at the given address."""


class BrokerTooOldError(BrokerError):
    """The broker is older than the oldest series tarry is tested on."""


class MissingOnBrokerError(BrokerError):
    """A queue or exchange that was named is not on the broker."""


class TopologyMismatchError(BrokerError):
    """What is declared on the broker differs from the topology files."""


class GivenUpError(BrokerError):
    """The broker has given these requests to another router meanwhile; they are its to do."""

    def __init__(self) -> None:
        super().__init__(type(self).__doc__ or "")


class AuditError(TarryError):
    """Postgres refused something."""


class AuditUnavailableError(AuditError):
    """Postgres did not answer; retries keep flowing, their history waits."""


class ControlError(TarryError):
    """An operator's action could not be done as it was asked for; nothing was changed."""


class NotFoundError(ControlError):
    """Nothing is known by that id or name."""

    exit_code = 4


class ConflictError(ControlError):
    """It is being worked on, or has moved on, or the same was asked for before."""

    exit_code = 5


class AmbiguousIdError(ConflictError):
    """More than one fits that id, or that beginning of an id; the message lists them."""


class WrongStateError(ControlError):
    """It is not in a state in which that can be done; the message names the state."""

    exit_code = 6


class OutputError(TarryError):
    """The answer of a command cannot be written: the disk is full, say. What the command did is done."""


class ApiError(TarryError):
    """The HTTP API of a service did not answer, did not let us in, or failed."""


class EmbeddedError(TarryError):
    """The private broker or Postgres could not be had."""


class NoBrokerError(EmbeddedError):
    """No way to get a broker on this machine worked; the message lists the ways out."""


class StartupError(EmbeddedError):
    """A private service did not start; the message carries the tail of its own log."""

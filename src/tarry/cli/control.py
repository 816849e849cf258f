"""`tarry cancel`, `retry-now`, `pause`, `resume`, `throttle`, `pauses`, `intake`: actions on retries and destinations.

Exit codes: 0 done; 1 the broker or Postgres failed, or some of several ids failed; 2 wrong usage; 3 requested, and the
outcome is not known yet; 4 not found; 5 it has already returned, or another operation has it; 6 its state does not
allow the operation; 8 too few credits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal

import typer

from tarry.cli.control_view import (
    plain,
    show_diverted,
    show_pause_list,
    show_paused,
    show_resumed,
    show_throttled,
    show_unthrottled,
    until,
)
from tarry.cli.installation import duration
from tarry.cli.operator_command import operator_command
from tarry.cli.options import AsJson, Reason, Yes
from tarry.cli.output import Commands, confirm, error_report, line, print_error, print_json, progress_bar, waiting
from tarry.cli.streams import read_stdin
from tarry.errors import SettingsError, TarryError
from tarry.operations.cancel import Diverted
from tarry.operations.destinations import is_glob, matching
from tarry.operations.intake import Intake
from tarry.operations.pause import OBSERVE, RATE, DestinationPause, ReleaseOptions, Scope
from tarry.operations.protocol import Operations
from tarry.operations.retry_now import Retried

PENDING = 3
MANY = 10
"""More ids than this need a confirmation."""
MANY_HELD = 1_000
AT_ONCE = 16

Verb = Literal["cancel", "retry-now"]
Answer = Diverted | Retried | TarryError

DOING: dict[Verb, str] = {"cancel": "cancelling", "retry-now": "retrying"}


class PauseType(StrEnum):
    """What can be paused for all queues at once."""

    AUTOMATIC_RETRIES = "automatic-retries"
    STUCK_RECOVERY = "stuck-recovery"


Ids = Annotated[
    list[str],
    typer.Argument(
        metavar="ID…", help="Retry ids or their prefixes, or message ids; `-` reads them from stdin, one per line."
    ),
]
Pattern = Annotated[
    str | None, typer.Argument(metavar="[QUEUE]", help="A queue, `exchange:NAME`, or a glob such as 'orders.*'.")
]
OfPolicy = Annotated[str | None, typer.Option("--policy", metavar="NAME", help="Instead of a queue: one policy.")]
OfJobType = Annotated[str | None, typer.Option("--job-type", metavar="NAME", help="Instead of a queue: one job type.")]
OfType = Annotated[
    PauseType | None, typer.Option("--type", help="Instead of a queue: all automatic retries, or stuck recovery.")
]
Lasts = Annotated[
    str | None, typer.Option("--for", metavar="DURATION", help="Resume automatically after this long, as in 30m.")
]

Destinations = Annotated[
    str, typer.Argument(metavar="QUEUE", help="A queue, `exchange:NAME`, or a glob such as 'orders.*'.")
]

intake = typer.Typer(cls=Commands, no_args_is_help=True, help="Pause and resume the intake of retry requests.")


def register(app: typer.Typer) -> None:
    app.command("cancel")(operator_command(cancel))
    app.command("retry-now")(operator_command(retry_now))
    app.command("pause")(operator_command(pause))
    app.command("resume")(operator_command(resume))
    app.command("throttle")(operator_command(throttle))
    app.command("unthrottle")(operator_command(unthrottle))
    app.command("pauses")(operator_command(pauses, only_looks=True))
    intake.command("pause")(operator_command(pause_intake))
    intake.command("resume")(operator_command(resume_intake))
    app.add_typer(intake, name="intake")


async def cancel(
    ids: Ids, *, operations: Operations, reason: Reason = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Cancel waiting retries, so that they do not return.

    A cancelled message stays in its tier until it is due, and is then diverted. Exits 3 if the outcome is not known yet
    (`tarry history` shows it later), 4 if the id is unknown, 5 if the retry has already returned or is being routed, 6
    if it does not wait; with several ids, 1 if any of them failed.
    """
    await _divert(operations, "cancel", ids, reason, yes=yes, as_json=as_json)


async def retry_now(
    ids: Ids, *, operations: Operations, reason: Reason = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Send retries now that wait or are in review.

    A waiting one is sent from the stored payload, and its waiting message is diverted when it comes due; one in review
    is redriven. Exit codes as of `cancel`; 5 also if the payload was not stored or the destination is paused, 6 if it
    neither waits nor is in review, 8 if the credit check refuses it.
    """
    await _divert(operations, "retry-now", ids, reason, yes=yes, as_json=as_json)


async def pause(
    pattern: Pattern = None,
    *,
    operations: Operations,
    policy: OfPolicy = None,
    job_type: OfJobType = None,
    type_: OfType = None,
    lasts: Lasts = None,
    then_canary: Annotated[
        bool, typer.Option("--then-canary", help="With --for: release 1, 10, 100 first; the rest if those succeed.")
    ] = False,
    then_rate: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="With --for: release so many messages per second.")
    ] = None,
    then_observe: Annotated[
        str | None, typer.Option(metavar="DURATION", help="With --then-canary: observe each canary at least this long.")
    ] = None,
    reason: Reason = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Pause returns to a destination, of a policy or of a job type.

    Messages that come due wait in a held queue. A glob also applies to destinations that appear later. `--type
    automatic-retries` holds all returns except those that an operator asks for; `--type stuck-recovery` holds no
    message, and stops the automatic recovery of stuck ones. Exits 4 if the destination or the policy is unknown.
    """
    scope, name = _target(pattern, policy, job_type, type_)
    length, at_end = length_of(lasts), _at_end(lasts, then_rate, then_observe, canary=then_canary)
    if scope == "queue" and is_glob(name) and not yes:
        found = await operations.destinations(name)
        if len(found) > MANY:
            confirm(f"{name!r} matches {len(found)} destinations.", yes=yes)
    with waiting("Pausing", quiet=as_json):
        answer = await operations.pause(name, scope=scope, reason=reason, lasts=length, at_end=at_end)
    print_json(plain(asdict(answer))) if as_json else show_paused(answer)
    if answer.problems:
        raise typer.Exit(1)


async def resume(
    pattern: Pattern = None,
    *,
    operations: Operations,
    policy: OfPolicy = None,
    job_type: OfJobType = None,
    type_: OfType = None,
    rate: Annotated[int, typer.Option(min=1, max=100_000, help="Messages per second.")] = RATE,
    canary: Annotated[
        bool, typer.Option("--canary", help="First 1, then 10, then 100; the rest only if those succeed.")
    ] = False,
    observe: Annotated[
        str, typer.Option(metavar="DURATION", help="Observe each canary for at least this long.")
    ] = "10s",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Release held messages of a destination, a policy or a job type, at a limited rate.

    The service releases them, and continues after a restart. A message that another pause applies to stays held. Exits
    4 if nothing that matches is paused.
    """
    scope, name = _target(pattern, policy, job_type, type_)
    length = duration(observe, "--observe")
    if not (yes or canary):
        await _confirm_resume(operations, scope, name, rate)
    answer = await operations.resume(name, scope=scope, rate=rate, canary=canary, observe=length)
    print_json(plain(asdict(answer))) if as_json else show_resumed(answer)


async def throttle(
    pattern: Destinations,
    *,
    operations: Operations,
    rate: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many returns per second.")],
    lasts: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="End automatically after this long, as in 2h.")
    ] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Limit the returns to a destination to so many per second.

    The rest waits in the held queue, in order; the service releases it. The same command with another rate changes it.
    A glob also applies to destinations that appear later, with the rate for each. Exits 4 if the destination is
    unknown.
    """
    length = length_of(lasts)
    with waiting("Throttling", quiet=as_json):
        answer = await operations.throttle(pattern, rate=rate, reason=reason, lasts=length)
    print_json(plain(asdict(answer))) if as_json else show_throttled(answer)
    if answer.problems:
        raise typer.Exit(1)


async def unthrottle(
    pattern: Destinations, *, operations: Operations, reason: Reason = None, as_json: AsJson = False
) -> None:
    """End the throttles of a destination.

    The service releases what waits at 500 a second. The limit of a policy (`max_rate`) stays. Exits 4 if no operator
    has throttled it.
    """
    answer = await operations.unthrottle(pattern, reason=reason)
    print_json(plain(asdict(answer))) if as_json else show_unthrottled(answer)


async def pauses(*, operations: Operations, as_json: AsJson = False) -> None:
    """Show what is paused or throttled, by whom, why and until when."""
    found = await operations.show_pauses()
    print_json(plain(asdict(found))) if as_json else show_pause_list(found)


async def pause_intake(
    *, operations: Operations, lasts: Lasts = None, reason: Reason = None, as_json: AsJson = False
) -> None:
    """Stop taking retry requests; they wait in their queue.

    Messages in tiers return as usual.
    """
    _show_intake(await operations.pause_intake(reason=reason, lasts=length_of(lasts)), as_json=as_json)


async def resume_intake(*, operations: Operations, reason: Reason = None, as_json: AsJson = False) -> None:
    """Take retry requests again."""
    _show_intake(await operations.resume_intake(reason=reason), as_json=as_json)


def _show_intake(answer: Intake, *, as_json: bool) -> None:
    if as_json:
        print_json(plain(asdict(answer)))
    else:
        state = f"paused{until(answer.until)}" if answer.paused else "open"
        line(f"the intake is {state}; the routers follow within a second", "✓", "green")


def _target(
    pattern: str | None, policy: str | None, job_type: str | None, type_: PauseType | None
) -> tuple[Scope, str]:
    """Exactly one of them must be given."""
    given: list[tuple[Scope, str]] = []
    if pattern is not None:
        given.append(("queue", pattern))
    if policy is not None:
        given.append(("policy", policy))
    if job_type is not None:
        given.append(("job-type", job_type))
    if type_ is not None:
        given.append((type_.value, ""))
    if len(given) != 1:
        raise SettingsError("Give one of a queue, --policy, --job-type and --type.")
    return given[0]


def length_of(lasts: str | None) -> timedelta | None:
    """The duration given with `--for`."""
    length = duration(lasts, "--for") if lasts is not None else None
    if length is not None and not length:
        raise SettingsError("--for 0s would end at once: leave it out, or give a longer duration")
    return length


def _at_end(lasts: str | None, rate: int | None, observe: str | None, *, canary: bool) -> ReleaseOptions | None:
    if rate is None and observe is None and not canary:
        return None
    if lasts is None:
        raise SettingsError("--then-canary, --then-rate and --then-observe need --for: without it a pause has no end")
    length = OBSERVE if observe is None else duration(observe, "--then-observe")
    return ReleaseOptions(RATE if rate is None else rate, canary, length)


async def _confirm_resume(operations: Operations, scope: Scope, name: str, rate: int) -> None:
    found = [one for one in (await operations.show_pauses()).paused_destinations if _is_named(one, scope, name)]
    waiting = sum(one.depth or 0 for one in found)
    if waiting > MANY_HELD:
        confirm(
            f"This releases {waiting:,} messages from {len(found)} held queue(s) at {rate}/s each, without a canary.",
            yes=False,
        )


def _is_named(paused: DestinationPause, scope: Scope, name: str) -> bool:
    if scope == "queue":
        return paused.is_destination and bool(matching(name, [paused.destination]))
    return (paused.kind, paused.name) == (scope, name)


async def _divert(
    operations: Operations, verb: Verb, ids: Sequence[str], reason: str | None, *, yes: bool, as_json: bool
) -> None:
    wanted = list(dict.fromkeys(_read_ids(ids)))
    if len(wanted) > MANY:
        confirm(f"{verb} {len(wanted):,} retries.", yes=yes)
    with progress_bar(DOING[verb], quiet=as_json) as bar:
        bar.update(bar.task_ids[0], total=len(wanted))
        answers = await _all(operations, verb, wanted, reason, lambda: bar.advance(bar.task_ids[0]))
    if len(answers) == 1 and isinstance(answers[0], TarryError) and not as_json:
        raise answers[0]
    if as_json:
        print_json([_report(called, answer) for called, answer in zip(wanted, answers, strict=True)])
    else:
        show_diverted([one for one in answers if not isinstance(one, TarryError)])
        for error in answers:
            if isinstance(error, TarryError):
                print_error(error)
    code = _exit_code(answers)
    if code:
        raise typer.Exit(code)


async def _all(
    operations: Operations, verb: Verb, wanted: Sequence[str], reason: str | None, advance: Callable[[], None]
) -> list[Answer]:
    """Run concurrently: retries that are about to come due should not wait for others."""
    room = asyncio.Semaphore(AT_ONCE)
    act: Callable[..., Awaitable[Answer]] = operations.cancel if verb == "cancel" else operations.retry_now

    async def one(called: str) -> Answer:
        async with room:
            try:
                return await act(called, reason=reason)
            except TarryError as error:
                return error
            finally:
                advance()

    return await asyncio.gather(*map(one, wanted))


def _read_ids(ids: Sequence[str]) -> list[str]:
    if list(ids) != ["-"]:
        return list(ids)
    found = [text.strip() for text in read_stdin().splitlines() if text.strip()]
    if not found:
        raise SettingsError("There are no ids on stdin.")
    return found


def _report(called: str, answer: Answer) -> dict[str, object]:
    if isinstance(answer, TarryError):
        return {"id": called, **error_report(answer)}
    return {"id": called, **plain(asdict(answer))}


def _exit_code(answers: Sequence[Answer]) -> int:
    errors = [one for one in answers if isinstance(one, TarryError)]
    if errors:
        return errors[0].exit_code if len(answers) == 1 else 1
    return PENDING if any(not isinstance(one, TarryError) and one.answer == "pending" for one in answers) else 0

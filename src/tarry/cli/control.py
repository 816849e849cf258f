"""`tarry cancel`, `retry-now`, `pause`, `resume`, `holds` and `intake`: an operator's hands.

Exit codes: 0 done; 1 trouble with broker or Postgres, or not all of several were done; 2 wrong usage; 3 asked for, and
no word of it yet; 4 nothing is known by that name; 5 it has moved on, or somebody else has it; 6 it is in a state in
which that cannot be done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from tarry.cli.control_options import Reason, Yes, with_hands
from tarry.cli.control_port import Hands, Verb
from tarry.cli.control_view import plain, show_diverted, show_holds, show_paused, show_resumed
from tarry.cli.installation import duration
from tarry.cli.options import AsJson
from tarry.cli.output import Commands, confirm, line, print_error, print_json
from tarry.cli.streams import read_stdin
from tarry.control.cancel import Diverted
from tarry.control.destinations import is_glob, matching
from tarry.control.holds import RATE
from tarry.errors import SettingsError, TarryError

PENDING = 3
MANY = 10
"""More ids than this are asked about first."""
MANY_HELD = 1_000
AT_ONCE = 16

Ids = Annotated[
    list[str],
    typer.Argument(
        metavar="ID…", help="Retry ids, their beginnings, or message ids; `-` reads them from stdin, one a line."
    ),
]
Pattern = Annotated[
    str, typer.Argument(metavar="QUEUE", help="A queue, `exchange:NAME`, or a glob such as 'orders.*'.")
]

intake = typer.Typer(cls=Commands, no_args_is_help=True, help="Whether the routers take retry requests.")


def register(app: typer.Typer) -> None:
    app.command("cancel")(with_hands(cancel))
    app.command("retry-now")(with_hands(retry_now))
    app.command("pause")(with_hands(pause))
    app.command("resume")(with_hands(resume))
    app.command("holds")(with_hands(holds, only_looks=True))
    intake.command("pause")(with_hands(pause_intake))
    intake.command("resume")(with_hands(resume_intake))
    app.add_typer(intake, name="intake")


async def cancel(ids: Ids, *, hands: Hands, reason: Reason = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Cancel waiting retries: they are taken out of the way when they come due, and do not return.

    Exits 3 if there is no word of it yet (`tarry history` will have it), 4 if nothing is known by that id, 5 if it has
    already returned or is being routed, 6 if nothing of it waits; of several, 1 if not all were done.
    """
    await _divert(hands, "cancel", ids, reason, yes=yes, as_json=as_json)


async def retry_now(
    ids: Ids, *, hands: Hands, reason: Reason = None, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Send waiting retries at once, from the stored payloads; the waiting ones are taken out of the way.

    Exit codes as of `cancel`; 5 also if its payload was not kept or its destination is paused.
    """
    await _divert(hands, "retry-now", ids, reason, yes=yes, as_json=as_json)


async def pause(
    pattern: Pattern,
    *,
    hands: Hands,
    lasts: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="Resume by itself after so long: 30m.")
    ] = None,
    reason: Reason = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Hold returns to a destination, or to all that match a glob, also those that appear later.

    What comes due meanwhile waits in its held queue. Exits 4 if nobody knows that destination.
    """
    length = duration(lasts, "--for") if lasts is not None else None
    if length is not None and not length:
        raise SettingsError("--for 0s would be over at once: leave it out, or give it a length")
    if is_glob(pattern) and not yes:
        found = await hands.destinations(pattern)
        if len(found) > MANY:
            confirm(f"{pattern!r} matches {len(found)} destinations.", yes=yes)
    answer = await hands.pause(pattern, reason, length)
    print_json(plain(asdict(answer))) if as_json else show_paused(answer)
    if answer.problems:
        raise typer.Exit(1)


async def resume(
    pattern: Pattern,
    *,
    hands: Hands,
    rate: Annotated[int, typer.Option(min=1, max=100_000, help="Messages a second.")] = RATE,
    canary: Annotated[
        bool, typer.Option("--canary", help="First 1, then 10, then 100; the rest only if those succeed.")
    ] = False,
    look: Annotated[str, typer.Option(metavar="DURATION", help="How long each canary is watched at least.")] = "10s",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let go what is held, at a rate. The service does it, and goes on after a restart.

    Exits 4 if nothing that matches is paused.
    """
    watched = duration(look, "--look")
    if not (yes or canary):
        await _confirm_resume(hands, pattern, rate)
    answer = await hands.resume(pattern, rate, canary=canary, look=watched)
    print_json(plain(asdict(answer))) if as_json else show_resumed(answer)


async def holds(*, hands: Hands, as_json: AsJson = False) -> None:
    """What is paused: by whom, why, until when, how much waits, and how far a release is."""
    found = await hands.holds()
    print_json(plain(asdict(found))) if as_json else show_holds(found)


async def pause_intake(*, hands: Hands, reason: Reason = None, as_json: AsJson = False) -> None:
    """Stop taking retry requests: they wait in their queue. What already waits in tiers returns as it should."""
    await _set_intake(hands, reason, paused=True, as_json=as_json)


async def resume_intake(*, hands: Hands, reason: Reason = None, as_json: AsJson = False) -> None:
    """Take retry requests again."""
    await _set_intake(hands, reason, paused=False, as_json=as_json)


async def _set_intake(hands: Hands, reason: str | None, *, paused: bool, as_json: bool) -> None:
    answer = await hands.set_intake(reason, paused=paused)
    if as_json:
        print_json(plain(asdict(answer)))
    else:
        line(f"the intake is {'paused' if answer.paused else 'open'}; the routers follow within a second", "✓", "green")


async def _confirm_resume(hands: Hands, pattern: str, rate: int) -> None:
    found = [one for one in (await hands.holds()).holds if matching(pattern, [one.destination])]
    waiting = sum(one.depth or 0 for one in found)
    if waiting > MANY_HELD:
        confirm(
            f"This lets {waiting:,} messages go to {len(found)} destination(s) at {rate}/s each, without a canary.",
            yes=False,
        )


async def _divert(
    hands: Hands, verb: Verb, ids: Sequence[str], reason: str | None, *, yes: bool, as_json: bool
) -> None:
    wanted = list(dict.fromkeys(_read_ids(ids)))
    if len(wanted) > MANY:
        confirm(f"{verb} {len(wanted):,} retries.", yes=yes)
    answers = await _all(hands, verb, wanted, reason)
    if len(answers) == 1 and isinstance(answers[0], TarryError) and not as_json:
        raise answers[0]
    if as_json:
        print_json([_report(called, answer) for called, answer in zip(wanted, answers, strict=True)])
    else:
        show_diverted([one for one in answers if isinstance(one, Diverted)])
        for error in answers:
            if isinstance(error, TarryError):
                print_error(error)
    code = _exit_code(answers)
    if code:
        raise typer.Exit(code)


async def _all(hands: Hands, verb: Verb, wanted: Sequence[str], reason: str | None) -> list[Diverted | TarryError]:
    """Several at once: those that are about to come due should not wait for others."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(called: str) -> Diverted | TarryError:
        async with room:
            try:
                return await hands.divert(verb, called, reason)
            except TarryError as error:
                return error

    return await asyncio.gather(*map(one, wanted))


def _read_ids(ids: Sequence[str]) -> list[str]:
    if list(ids) != ["-"]:
        return list(ids)
    found = [text.strip() for text in read_stdin().splitlines() if text.strip()]
    if not found:
        raise SettingsError("There are no ids on stdin.")
    return found


def _report(called: str, answer: Diverted | TarryError) -> dict[str, object]:
    if isinstance(answer, TarryError):
        return {"id": called, "error": str(answer), "kind": type(answer).__name__}
    return {"id": called, **plain(asdict(answer))}


def _exit_code(answers: Sequence[Diverted | TarryError]) -> int:
    errors = [one for one in answers if isinstance(one, TarryError)]
    if errors:
        return errors[0].exit_code if len(answers) == 1 else 1
    return PENDING if any(isinstance(one, Diverted) and one.answer == "pending" for one in answers) else 0

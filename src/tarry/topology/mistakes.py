"""One validation error as one line for the person who wrote the file: what is wrong, and what would be right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from tarry.topology.model import Topology

Location = Sequence[int | str]

ALPHABETS = {
    "name": "use small letters, digits, `.`, `_` and `-`, and start with a letter or digit",
    "prefix": "use letters, digits, `.`, `_`, `:` and `-`, 64 at the most",
}
"""What the patterns of these fields say, in words."""

LONGEST_QUOTE = 80


def messages(problem: ErrorDetails) -> list[str]:
    """One message for each mistake; a check of a whole table can find several."""
    location = problem["loc"]
    match problem["type"]:
        case "extra_forbidden":
            return [f"no such key{suggestion(location)}"]
        case "missing":
            return [f"is missing: {description(location)}"]
        case "value_error":
            return problem["msg"].removeprefix("Value error, ").splitlines()
        case "string_pattern_mismatch":
            return [f"`{short(problem['input'])}`: {ALPHABETS.get(str(location[-1]), problem['msg'])}"]
        case _:
            return [f"`{short(problem['input'])}`: {problem['msg'].replace('Input should', 'should')}"]


def short(given: object) -> str:
    """In one line, whatever it is."""
    text = " ".join(str(given).split())
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 1] + "…"


def without_echoes(problems: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """A list whose entries are all wrong is also called too short; that says nothing new."""
    for problem in problems:
        inside = (other["loc"][: len(problem["loc"])] for other in problems if len(other["loc"]) > len(problem["loc"]))
        if problem["type"] != "too_short" or problem["loc"] not in inside:
            yield problem


def suggestion(location: Location) -> str:
    """`; did you mean schedule?`, or all that could stand there."""
    keys = sorted(known_keys(location[:-1]))
    close = get_close_matches(str(location[-1]), keys, n=1, cutoff=0.6)
    if close:
        return f"; did you mean `{close[0]}`?"
    return f"; known here: {', '.join(keys)}" if keys else ""


def known_keys(location: Location) -> set[str]:
    model = model_at(location)
    return set() if model is None else {field.alias or name for name, field in model.model_fields.items()}


def description(location: Location) -> str:
    model = model_at(location[:-1])
    fields = {} if model is None else {field.alias or name: field for name, field in model.model_fields.items()}
    found = fields.get(str(location[-1]))
    return (found.description if found is not None else None) or "give it a value"


def model_at(location: Location) -> type[BaseModel] | None:
    """The model that the table at this place of the file is checked by."""
    model: type[BaseModel] | None = Topology
    for key in location:
        if isinstance(key, int) or model is None:
            continue
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        model = _model_in(fields[key].annotation) if key in fields else None
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """`Backoff | None` → Backoff, `tuple[Policy, ...]` → Policy."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)

"""The base of everything that is read from a topology file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Strict


class Model(BaseModel):
    """Refuses unknown keys: a typo must not silently leave a default in place."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class WrongKeyError(ValueError):
    """A wrong value that only the check of a whole table can find. `keys` lead from the table to it."""

    def __init__(self, message: str, *keys: int | str) -> None:
        super().__init__(message)
        self.keys = keys


Whole = Annotated[int, Strict()]
"""A whole number. Without `Strict`, `true` would be read as 1, and text as the number in it."""

Number = Annotated[float, Strict()]
"""A number that may have a fraction."""

"""The base of everything that is read from a topology file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """Refuses unknown keys: a typo must not silently leave a default in place."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

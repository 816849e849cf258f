"""Where a topology was read from: its folder, and the file of each policy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """A folder as it was given, and the files of its policies in their order."""

    folder: Path
    policy_files: tuple[Path, ...] = ()
    is_shipped: bool = False
    """Whether it is the topology that comes with tarry."""

    @property
    def path(self) -> str:
        """The folder's full path: two relative ones look the same from two places."""
        return os.path.abspath(self.folder)  # noqa: PTH100 - without following links, as pathlib would

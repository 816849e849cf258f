"""Settings: from flags, the environment, or a file, in that order; otherwise the defaults."""

from __future__ import annotations

from tarry.settings.model import Settings
from tarry.settings.sources import load_settings, read_settings

__all__ = ["Settings", "load_settings", "read_settings"]

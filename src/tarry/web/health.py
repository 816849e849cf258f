"""Whether a service is ready, in a word and with its reasons."""

from __future__ import annotations

from typing import Literal

from tarry.router.service import Service

Readiness = Literal["ready", "degraded", "not ready"]


def readiness(service: Service) -> tuple[Readiness, list[str]]:
    """Postgres being away is degraded, but ready; an intake that somebody paused is ready, and says so."""
    notes = [str(note) for note in (service.degraded, service.intake_note) if note]
    if service.troubles:
        return "not ready", service.troubles + notes
    return "degraded" if service.degraded else "ready", notes

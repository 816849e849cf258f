"""Readiness of a service, with the reasons."""

from __future__ import annotations

from typing import Literal

from tarry.service.app import Service

Readiness = Literal["ready", "degraded", "not ready"]


def readiness(service: Service) -> tuple[Readiness, list[str]]:
    """Without Postgres the service is degraded, but ready; a paused intake is ready, with a note."""
    if service.troubles:
        return "not ready", service.troubles + service.notes
    return "degraded" if service.degraded else "ready", service.notes

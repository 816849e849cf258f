"""Webhooks: their state, a test delivery, and the repetition of events."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path
from pydantic import Field

from tarry.operations.webhooks import WebhookReplay, WebhookStatus, WebhookTest
from tarry.web.api.auth import Looker, Operator, Requested
from tarry.web.api.dependencies import Operations
from tarry.web.api.parameters import Moment, Text

router = APIRouter(prefix="/webhooks", tags=["webhooks"])

Name = Annotated[Text, Path(description="The name of a webhook of the topology.")]


class Testing(Requested):
    """Who requests it."""


class Replaying(Requested):
    """Which events."""

    since: Moment = Field(description="Only events since then: 2030-01-31T12:00Z.")
    everything: bool = Field(default=False, description="Also if there are more than a thousand.")


@router.get("", summary="Webhooks, and how their deliveries go")
async def list_webhooks(_caller: Looker, operations: Operations) -> list[WebhookStatus]:
    """How many events wait or are retried, the last success and the last failure. No secret is shown."""
    return await operations.list_webhooks()


@router.post("/{name}/test", summary="Send a test event to a webhook")
async def send_test(
    caller: Operator, operations: Operations, name: Name, body: Annotated[Testing | None, Body()] = None
) -> WebhookTest:
    """The answer says whether the endpoint took it. If it did, a disabled webhook is enabled. 404 if there is no such
    webhook.
    """
    wanted = body or Testing()
    return await operations.acting_as(caller.actor(wanted.requested_by)).test_webhook(name)


@router.post("/{name}/replay", summary="Deliver events again to a webhook")
async def replay(caller: Operator, operations: Operations, name: Name, body: Replaying) -> WebhookReplay:
    """Puts the events that it wants into its queue again, from the stream, with the ids that they had. Refused for more
    than a thousand without `everything`. 404 if there is no such webhook.
    """
    acting = operations.acting_as(caller.actor(body.requested_by))
    return await acting.replay_webhook(name, since=body.since, everything=body.everything)

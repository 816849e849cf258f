"""Events as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tarry.errors import TarryError
from tarry.events.stream import EventFilter, StreamedEvent
from tarry.web.api.auth import Looker
from tarry.web.api.dependencies import Operations
from tarry.web.api.parameters import QueueName, Since, Text, begin_of

router = APIRouter(prefix="/events", tags=["events"])

MEDIA_TYPE = "text/event-stream"

SILENCE = 15.0
"""Seconds without an event after which a comment is sent, so that nothing on the way closes the connection."""

LARGEST_OFFSET = 2**62


@router.get(
    "",
    summary="Read events, and wait for new ones",
    response_class=StreamingResponse,
    responses={
        200: {"description": "Server-sent events; `data` is a CloudEvent as JSON.", "content": {MEDIA_TYPE: {}}}
    },
)
async def read_events(
    _caller: Looker,
    operations: Operations,
    *,
    follow: Annotated[bool, Query(description="Wait for new events; with false, the answer ends.")] = True,
    since: Annotated[Since | None, Query(description="Only newer events: `1h`, or since `2030-01-31T12:00Z`.")] = None,
    queue: Annotated[QueueName | None, Query(description="A queue, or a glob.")] = None,
    state: Annotated[list[Text] | None, Query(description="States or short types.", max_length=50)] = None,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=LARGEST_OFFSET, description="Goes on after the event with this id.")
    ] = None,
) -> Response:
    """Each event has an `id`, its offset in the stream; a browser sends the last one when it connects again.

    Without `since` and `Last-Event-ID`, a following reader gets new events only, and any other all that
    the stream keeps. A token that is limited to queues gets the events of these queues.
    """
    wanted = EventFilter(
        since=begin_of(since) if since else None,
        after=last_event_id,
        queue=queue,
        states=frozenset(state or ()),
        follow=follow,
    )
    found = await operations.events(wanted)
    return _Answer(found)


class _Answer(StreamingResponse):
    """Closes the reader of the stream whenever the caller leaves, also before anything was sent."""

    def __init__(self, events: AsyncGenerator[StreamedEvent, None]) -> None:
        self._events, self._text = events, _as_text(events)
        super().__init__(self._text, media_type=MEDIA_TYPE, headers={"X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._text.aclose()
            await self._events.aclose()


async def _as_text(events: AsyncGenerator[StreamedEvent, None]) -> AsyncGenerator[str, None]:
    """Ends with an `error` if the stream is lost: the reader connects again, with the last id."""
    coming: asyncio.Task[StreamedEvent | None] | None = None
    try:
        yield _COMMENT
        while True:
            coming = coming or asyncio.create_task(_next(events))
            if not (await asyncio.wait([coming], timeout=SILENCE))[0]:
                yield _COMMENT
                continue
            one, coming = coming.result(), None
            if one is None:
                return
            yield _written(one)
    except TarryError as error:
        yield f"event: error\ndata: {json.dumps({'detail': str(error)})}\n\n"
    finally:
        if coming is not None and not coming.done():
            coming.cancel()
            await asyncio.wait([coming])
        await events.aclose()


_COMMENT = ": tarry\n\n"


async def _next(events: AsyncGenerator[StreamedEvent, None]) -> StreamedEvent | None:
    return await anext(events, None)


def _written(one: StreamedEvent) -> str:
    text = json.dumps(one.as_json(), ensure_ascii=False)
    return f"id: {one.offset}\nevent: {one.event.word}\ndata: {text}\n\n"

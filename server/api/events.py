"""`/v1/jobs/{id}/events`: a job's events as they happen, by server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from server.api.ids import JobId
from server.context import ContextDep, ServerContext
from server.event_feed import PAGE, EventCursor, Page
from server.problems import problems

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_EVENT = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["id", "event", "data"],
}
_EVENTS_ANSWER = {"content": {"text/event-stream": {"itemSchema": _EVENT}}}
_NO_MORE_EVENTS = {"description": "The job is finished and has no more events"}


@router.get(
    "/{job_id}/events",
    response_class=EventSourceResponse,
    responses={200: _EVENTS_ANSWER, 204: _NO_MORE_EVENTS, **problems(404)},
)
async def watch(
    job_id: JobId,
    context: ContextDep,
    last_event_id: Annotated[int, Header(ge=0, lt=2**63)] = 0,
) -> Response:
    """Stream the job's events after Last-Event-ID (by default all), and new ones until the job is finished.

    Each event's data is JSON, with `at` in epoch seconds. If a finished job has no more events, the response
    is 204, which makes a browser stop asking.
    """
    cursor = EventCursor(job_id, last_event_id)
    page = await context.event_feed.read(cursor)
    if page.finished and not page.events:
        return Response(status_code=204)
    return EventSourceResponse(_stream(context, cursor, page))


async def _stream(context: ServerContext, cursor: EventCursor, page: Page) -> AsyncIterator[ServerSentEvent]:
    """Yield the events of a page, which starts at the cursor, and of all later pages."""
    feed = context.event_feed
    while True:
        for event in page.events:
            data = json.dumps(event.data | {"at": event.at})
            yield ServerSentEvent(data, event=event.kind, id=str(event.id))
        if page.finished or context.stopping.is_set():
            return
        if page.events:
            cursor = EventCursor(cursor.job_id, page.events[-1].id)
        # The next page is read without waiting for a poll, so that late subscribers catch up quickly.
        page = await (feed.read(cursor) if len(page.events) == PAGE else feed.wait(cursor))

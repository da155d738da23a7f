"""`/v1/jobs/{id}/events`: a job's events as they happen, by server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from records.jobs import events, jobs
from records.jobs.events import Event
from server.context import ContextDep, ServerContext
from server.problems import problems
from server.waiting import sleep_unless_stopping

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

_POLL_S = 0.3
_PAGE = 200
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
    job_id: str,
    context: ContextDep,
    last_event_id: Annotated[int, Header(ge=0, lt=2**63)] = 0,
) -> Response:
    """Stream the job's events after Last-Event-ID (default: all), and new ones until the job is finished.

    Each event's data is JSON, with `at` in epoch seconds. When a finished job has no more events, the answer
    is 204, which tells a browser to stop asking.
    """
    page, finished = await asyncio.to_thread(_next_events, context, job_id, last_event_id)
    if finished and not page:
        return Response(status_code=204)
    return EventSourceResponse(_stream(context, job_id, last_event_id))


async def _stream(context: ServerContext, job_id: str, after: int) -> AsyncIterator[ServerSentEvent]:
    while not context.stopping.is_set():
        page, finished = await asyncio.to_thread(_next_events, context, job_id, after)
        for event in page:
            after = event.id
            data = json.dumps(event.data | {"at": event.at})
            yield ServerSentEvent(data, event=event.kind, id=str(event.id))
        if not page:
            if finished:
                return
            await sleep_unless_stopping(context.stopping, _POLL_S)


def _next_events(context: ServerContext, job_id: str, after: int) -> tuple[list[Event], bool]:
    """Return the next events, and whether the job was finished before they were read."""
    with context.database.begin() as session:
        finished = jobs.get(session, job_id).state.finished
        return events.since(session, job_id, after, _PAGE), finished

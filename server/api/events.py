"""`/v1/jobs/{id}/events`: what happens to a job, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from records.jobs import events, jobs
from records.jobs.events import Event
from server.api.problems import problems
from server.context import ContextDep, ServerContext

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
_NO_MORE = {"description": "The job is finished and has nothing more to tell"}


@router.get(
    "/{job_id}/events",
    response_class=EventSourceResponse,
    responses={200: _EVENTS_ANSWER, 204: _NO_MORE, **problems(404)},
)
async def watch(
    job_id: str,
    context: ContextDep,
    last_event_id: Annotated[int, Header(ge=0, lt=2**63)] = 0,
) -> Response:
    """The job's events after Last-Event-ID (default: all), then new ones until the job is finished.

    Each event's data is JSON with what happened and `at`, epoch seconds. When a finished job has nothing
    more to tell, the answer is 204, which tells a browser to stop asking.
    """
    news, finished = await asyncio.to_thread(_read, context, job_id, last_event_id)
    if finished and not news:
        return Response(status_code=204)
    return EventSourceResponse(_stream(context, job_id, last_event_id))


async def _stream(context: ServerContext, job_id: str, after: int) -> AsyncIterator[ServerSentEvent]:
    while not context.stopping.is_set():
        news, finished = await asyncio.to_thread(_read, context, job_id, after)
        for event in news:
            after = event.id
            data = json.dumps(event.data | {"at": event.at})
            yield ServerSentEvent(data, event=event.kind, id=str(event.id))
        if not news:
            if finished:
                return
            await pause(context.stopping, _POLL_S)


def _read(context: ServerContext, job_id: str, after: int) -> tuple[list[Event], bool]:
    """The next events, and whether the job was finished before they were read."""
    with context.database.begin() as session:
        finished = jobs.get(session, job_id).state.finished
        return events.since(session, job_id, after, _PAGE), finished


async def pause(stopping: asyncio.Event, seconds: float) -> None:
    """Waits, but not beyond the moment the server stops."""
    try:
        await asyncio.wait_for(stopping.wait(), seconds)
    except TimeoutError:
        return

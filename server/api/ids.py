"""Ids in the paths of routes. The beginning of an id stands for the only id that begins with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

from fastapi import Depends, Path, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from records import access, webhooks
from records.jobs import jobs, tasks
from server.api.fields import WorkloadHash
from server.context import ContextDep, ServerContext

# Generated ids have this length, and need no query.
_FULL_LENGTH = 32


async def _job_id(job_id: str, request: Request, context: ContextDep) -> str:
    return await _full_id(context, request, jobs.full_id, job_id)


async def _token_id(token_id: str, request: Request, context: ContextDep) -> str:
    return await _full_id(context, request, access.full_id, token_id)


async def _webhook_id(webhook_id: str, request: Request, context: ContextDep) -> str:
    return await _full_id(context, request, webhooks.full_id, webhook_id)


async def _workload(workload: Annotated[WorkloadHash, Path()], request: Request, context: ContextDep) -> str:
    return await _full_id(context, request, tasks.full_hash, workload)


JobId: TypeAlias = Annotated[str, Depends(_job_id)]
TokenId: TypeAlias = Annotated[str, Depends(_token_id)]
WebhookId: TypeAlias = Annotated[str, Depends(_webhook_id)]
Workload: TypeAlias = Annotated[str, Depends(_workload)]


async def _full_id(
    context: ServerContext, request: Request, find: Callable[[Session, str], str], start: str
) -> str:
    """Return the id that begins with `start`, and let the audit log name it."""
    if len(start) >= _FULL_LENGTH:
        return start

    def read() -> str:
        with context.database.reading() as session:
            return find(session, start)

    found = await run_in_threadpool(read)
    if found != start:
        request.state.audited = found
    return found

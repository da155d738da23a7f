"""`/healthz` and `/readyz`: the probes of container platforms."""

from __future__ import annotations

from fastapi import APIRouter

from server.context import ContextDep
from server.problems import Problem, problems

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Answer "ok", which shows that the process is alive."""
    return {"status": "ok"}


@router.get("/readyz", responses=problems(503, 507))
def readyz(context: ContextDep) -> dict[str, str]:
    """Answer while the process can use its database; 503 if it can't, or if it is stopping."""
    if context.stopping.is_set():
        raise Problem(503, "stopping", "The service stops.")
    context.database.ping()
    return {"status": "ok"}

"""`/v1/workloads`: the subgraphs of schedules."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from records.jobs import tasks
from server.api.ids import Workload
from server.context import ContextDep
from server.problems import problems

router = APIRouter(prefix="/v1/workloads", tags=["schedules"])


class WorkloadBody(BaseModel):
    """A workload: its structural hash, and its module as TVM's JSON."""

    hash: str
    module_json: str


@router.get("/{workload}", responses=problems(404))
def show(workload: Workload, context: ContextDep) -> WorkloadBody:
    """Return a workload's module."""
    with context.database.reading() as session:
        return WorkloadBody(hash=workload, module_json=tasks.workload(session, workload))

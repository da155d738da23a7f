"""`/v1/jobs/{id}/report`: the dashboard's pages of a job, in one file to keep or to send."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

from server.api import jobs, quantizations, workers
from server.api.ids import JobId
from server.context import ContextDep
from server.dashboard import page
from server.problems import Problem, problems

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.get("/{job_id}/report", response_class=HTMLResponse, responses=problems(404))
def report(job_id: JobId, context: ContextDep) -> HTMLResponse:
    """Return an HTML file with the job's charts and programs, which needs no service and no network."""
    job, tasks = jobs.show(job_id, context), jobs.show_tasks(job_id, context)
    path = f"v1/jobs/{quote(job_id, safe='')}"
    answers: dict[str, BaseModel] = {
        path: job,
        f"{path}/tasks": tasks,
        f"{path}/trials": jobs.show_trials(job_id, context),
        "v1/device-classes": workers.show_device_classes(context),
    }
    with suppress(Problem):
        answers[f"{path}/quantization"] = quantizations.show(job_id, context)
    if job.device_class is not None:
        for task in tasks.items:
            answers[f"{path}/tasks/{task.workload}"] = jobs.show_task(job_id, task.workload, context)
    document = page.report(
        {name: answer.model_dump(mode="json") for name, answer in answers.items()}, path.removeprefix("v1/")
    )
    name = f"tunefarm-{quote(job_id, safe='')}.html"
    return HTMLResponse(document, headers={"Content-Disposition": f'attachment; filename="{name}"'})

"""Follows a job to its end."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable

from core.exit_code import ExitCode
from core.job import JobState
from system.command import CommandError
from tunefarm.cli.estimate import Pace, seconds_left
from tunefarm.cli.progress import JobDisplay, JobProgress
from tunefarm.client.client import Client, ClientError, UnreachableError
from tunefarm.client.values import Job, JobEvent
from tunefarm.embedded.service import Service

LOOK_EVERY_S = 1.0
REST_S = 0.2
PATIENCE_S = 30.0


def follow_job(
    service: Service,
    job_id: str,
    display: JobDisplay,
    *,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
) -> Job:
    """Shows the job until it is finished, then returns it.

    Raises StackError when the stack it runs on breaks down, UnreachableError when the service is gone
    for longer than a restart takes.
    """
    news: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(service.client, job_id, news), daemon=True).start()
    pace = Pace()
    answered_s: float | None = None
    while True:
        service.check()
        try:
            progress = _look(service.client, job_id, pace, clock(), now())
        except UnreachableError:
            if answered_s is None or clock() - answered_s > PATIENCE_S:
                raise
        else:
            answered_s = clock()
            display.show(progress)
            if progress.job.state.finished:
                return progress.job
        _wait_for(news)


def require_done(job: Job) -> None:
    """Raises CommandError unless the job went well."""
    if job.state is JobState.CANCELLED:
        raise CommandError(f"job {job.id} was cancelled: nothing was made", ExitCode.JOB_CANCELLED)
    if job.state is not JobState.DONE:
        raise CommandError(f"job {job.id} failed: {job.error or 'no reason is known'}", ExitCode.JOB_FAILED)


def _look(client: Client, job_id: str, pace: Pace, clock_s: float, now: float) -> JobProgress:
    job, tasks = client.job(job_id), client.tasks(job_id)
    pace.note(clock_s, job.trials_done)
    rate = pace.trials_per_s()
    return JobProgress(job, tasks, rate, seconds_left(job, rate, now), clock_s)


def _listen(client: Client, job_id: str, news: queue.SimpleQueue[JobEvent]) -> None:
    # Events only say when to look again: without them the job is still looked at now and then.
    with contextlib.suppress(ClientError, RuntimeError):
        for event in client.events(job_id):
            news.put(event)


def _wait_for(news: queue.SimpleQueue[JobEvent]) -> None:
    """Until something happens, but not for long; what happens at once counts as one."""
    with contextlib.suppress(queue.Empty):
        news.get(timeout=LOOK_EVERY_S)
        time.sleep(REST_S)
        while True:
            news.get_nowait()

"""Follow a job to its end."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from core.exit_code import ExitCode
from core.job import JobState
from system.command import CommandError
from tunefarm.cli.progress import JobDisplay, JobProgress, TrialRate
from tunefarm.client.client import Client, ClientError, UnreachableError
from tunefarm.client.values import Job, JobEvent
from tunefarm.embedded.service import Service

LOOK_EVERY_S = 1.0
PAUSE_S = 0.2
PATIENCE_S = 30.0


def follow_job(
    service: Service,
    job_id: str,
    display: JobDisplay,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Job:
    """Show the job until it is finished, then return it. The trials of all jobs of its group are shown.

    Raises StackError if its embedded stack breaks down, and UnreachableError if the service is unavailable
    for longer than a restart takes.
    """
    client = service.client
    events: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
    listener = threading.Thread(target=_listen, args=(client, job_id, events), daemon=True)
    listener.start()
    rate = TrialRate()
    answered_s: float | None = None
    while True:
        service.check()
        try:
            asked_s = clock()
            job, tasks = client.job(job_id), client.tasks(job_id)
            others = [client.job(other) for other in job.members if other != job_id]
            together = sum(one.trials_done for one in (job, *others))
        except UnreachableError:
            if answered_s is None or clock() - answered_s > PATIENCE_S:
                raise
        else:
            answered_s = clock()
            rate.note(asked_s, together)
            shown = replace(job, trials_done=together)
            display.show(JobProgress(shown, tasks, rate.trials_per_s(), asked_s))
            if job.state.finished:
                # The events have ended, too. A connection that is opened while the client is closed would
                # stay open.
                listener.join(LOOK_EVERY_S)
                return job
        # Look again after the next event, or soon. A burst of events counts as one.
        with contextlib.suppress(queue.Empty):
            events.get(timeout=LOOK_EVERY_S)
            time.sleep(PAUSE_S)
            while True:
                events.get_nowait()


def require_done(job: Job) -> None:
    """Raise CommandError unless the job is done."""
    if job.state is JobState.CANCELLED:
        raise CommandError(f"job {job.id} was cancelled: it published nothing", ExitCode.JOB_CANCELLED)
    if job.state is not JobState.DONE:
        raise CommandError(f"job {job.id} failed: {job.error or 'no reason is known'}", ExitCode.JOB_FAILED)


def _listen(client: Client, job_id: str, events: queue.SimpleQueue[JobEvent]) -> None:
    # Events only trigger another look at the job. Without them, it is looked at every second.
    with contextlib.suppress(ClientError):
        for event in client.events(job_id):
            events.put(event)

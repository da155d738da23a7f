"""`tunefarm top`: the unfinished jobs and the workers of a service, up to date."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, islice

from rich.console import Group
from rich.text import Text

from core.durations import duration_text, latency_text
from core.job import JobState
from tunefarm.cli.fitted import Column, FittedTable
from tunefarm.cli.live import show_live
from tunefarm.cli.options import AsJson, Data, Server, Token, connected, print_json
from tunefarm.cli.progress import TrialRate
from tunefarm.cli.workers import worker_table
from tunefarm.client.client import Client
from tunefarm.client.values import Job

# The states of unfinished jobs, those closest to their end first.
STATES = (JobState.PUBLISHING, JobState.TUNING, JobState.IMPORTING, JobState.QUEUED)
MAX_JOBS_SHOWN = 20
COLUMNS = (
    Column("job", rank=3, text=True),
    Column("model", text=True),
    Column("state", text=True),
    Column.number("trials"),
    Column.number("trials/s", rank=5),
    Column.number("estimate", rank=1),
    Column.number("vs. ONNX Runtime", rank=2),
    Column.number("time left", rank=4),
    Column("message", rank=6, text=True),
)


def top(server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False) -> None:
    """Watch the unfinished jobs and the workers until Ctrl-C."""
    with connected(server, token, data) as service:
        client = service.client
        if as_json:
            workers = [asdict(worker) for worker in client.workers()]
            print_json({"jobs": [asdict(job) for job in unfinished(client)], "workers": workers})
            return
        show_live(Screen(client).draw, what="tunefarm top", instead="use --json, or tunefarm jobs")


def unfinished(client: Client) -> list[Job]:
    """Return up to MAX_JOBS_SHOWN unfinished jobs, those closest to their end first."""
    return list(islice(chain.from_iterable(client.jobs(state=state) for state in STATES), MAX_JOBS_SHOWN))


class Screen:
    """Draws the tables of a service's jobs and workers. It stores counts of trials to compute their rates."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._rates: defaultdict[str, TrialRate] = defaultdict(TrialRate)

    def draw(self) -> Group:
        """Return the current tables."""
        jobs = unfinished(self._client)
        for job in jobs:
            self._rates[job.id].note(self._clock(), job.trials_done)
        rates = {job.id: self._rates[job.id].trials_per_s() for job in jobs}
        workers = self._client.workers()
        shown = _job_table(jobs, rates) if jobs else Text("no job is unfinished")
        return Group(shown, Text(), worker_table(workers) if workers else Text("no worker has connected yet"))


def _job_table(jobs: Sequence[Job], rates: Mapping[str, float | None]) -> FittedTable:
    return FittedTable(COLUMNS, [_cells(job, rates[job.id]) for job in jobs])


def _cells(job: Job, rate: float | None) -> tuple[str, ...]:
    return (
        job.id,
        job.model_name,
        job.state,
        job.trials_text,
        "-" if rate is None else f"{rate:.1f}",
        latency_text(job.estimated_latency_s),
        job.onnxruntime_text,
        "-" if job.seconds_left is None else duration_text(job.seconds_left),
        job.message,
    )

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
from core.model_latency import network_s
from tunefarm.cli.fitted import Column, FittedTable
from tunefarm.cli.live import show_live
from tunefarm.cli.options import AsJson, Data, Server, Token, connected, print_json
from tunefarm.cli.progress import TrialRate
from tunefarm.cli.workers import live_worker_table
from tunefarm.client.client import Client
from tunefarm.client.values import Job, Task

# The states of unfinished jobs, those closest to their end first.
STATES = (JobState.PUBLISHING, JobState.TUNING, JobState.IMPORTING, JobState.QUEUED)
MAX_JOBS_SHOWN = 20
COLUMNS = (
    Column("job", rank=3, text=True),
    Column("model", text=True),
    Column("state", text=True),
    Column.number("trials"),
    Column.number("trials/s", rank=4),
    Column.number("estimate", rank=1),
    Column.number("vs. ONNX Runtime", rank=5),
    Column.number("time left", rank=2),
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
        tasks = {job.id: self._client.tasks(job.id) for job in jobs if job.state is JobState.TUNING}
        for job in jobs:
            self._rates[job.id].note(self._clock(), job.trials_done)
        rates = {job.id: self._rates[job.id].trials_per_s() for job in jobs}
        workers = self._client.workers()
        shown = _job_table(jobs, tasks, rates) if jobs else Text("no job is unfinished")
        return Group(
            shown, Text(), live_worker_table(workers) if workers else Text("no worker has connected yet")
        )


def _job_table(
    jobs: Sequence[Job], tasks: Mapping[str, Sequence[Task]], rates: Mapping[str, float | None]
) -> FittedTable:
    return FittedTable(
        COLUMNS, [_cells(job, network_s(tasks.get(job.id, ())), rates[job.id]) for job in jobs]
    )


def _cells(job: Job, best_s: float | None, rate: float | None) -> tuple[str, ...]:
    peer_s = None if job.onnxruntime is None else job.onnxruntime.latency_s
    return (
        job.id,
        job.model_name,
        job.state,
        job.trials_text,
        "-" if rate is None else f"{rate:.1f}",
        latency_text(best_s),
        "-" if best_s is None or peer_s is None else f"about {peer_s / best_s:.2f}x",
        "-" if job.seconds_left is None else duration_text(job.seconds_left),
        job.message,
    )

"""Tune models as a user does, on an embedded stack with an empty data folder, and time all steps."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console

from benchmarks.device_class import DeviceClass
from benchmarks.networks.limits import Limits
from benchmarks.results.curves import Point
from core.job import JobState
from core.model_latency import base_workload, network_s
from tunefarm.cli.follow import follow_job, require_done
from tunefarm.cli.progress import JobDisplay, JobProgress, PlainJobDisplay
from tunefarm.client.artifact import unpack
from tunefarm.client.client import Client
from tunefarm.client.values import Job, JobRequest, Task
from tunefarm.embedded import stack
from tunefarm.embedded.service import Service


@dataclass(frozen=True)
class Input:
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Manifest:
    """The part of an artifact's manifest that benchmarks read: target, inputs, and the measured seconds of
    each candidate for publication."""

    target: str
    inputs: tuple[Input, ...]
    untuned_s: tuple[float, ...] = ()
    tuned_s: tuple[float, ...] = ()
    published_s: tuple[float, ...] = ()

    @property
    def latency_s(self) -> float | None:
        """The median latency of the fastest candidate, which is published; None if nothing was timed."""
        timed = filter(None, (self.untuned_s, self.tuned_s, self.published_s))
        return min(map(statistics.median, timed), default=None)


@dataclass
class Recorder:
    """A display that records every update and passes it on to another display."""

    shown_on: JobDisplay
    pictures: list[JobProgress] = field(default_factory=list)

    def show(self, picture: JobProgress) -> None:
        self.shown_on.show(picture)
        self.pictures.append(picture)

    def points(self, start_s: float) -> tuple[Point, ...]:
        """Return the tuning curve, with a point for every change. `start_s` is the time of the job's
        submission."""
        points: list[Point] = []
        for picture in self.pictures:
            latency_s = network_s(picture.tasks)
            if latency_s is None:
                continue
            point = Point(round(picture.at_s - start_s, 3), picture.job.trials_done, latency_s)
            if not points or (point.trials, point.latency_s) != (points[-1].trials, points[-1].latency_s):
                points.append(point)
        return tuple(points)

    def search_s(self) -> float | None:
        """Return the seconds from the first to the last update in state TUNING, accurate to about a
        second."""
        seen = [picture.at_s for picture in self.pictures if picture.job.state is JobState.TUNING]
        return seen[-1] - seen[0] if len(seen) > 1 else None


@dataclass(frozen=True)
class Tuning:
    """A finished job with its `tasks`, and its machine's `limits`; `folder` has the unpacked artifact.

    `start_s` is the time to start the stack. `job_s` is the time from the upload of the model until the
    artifact is unpacked. `search_s` is the part of `job_s` for trials, without the first and the last build.
    """

    job: Job
    tasks: Sequence[Task]
    limits: Limits
    folder: Path
    manifest: Manifest
    start_s: float
    job_s: float
    search_s: float | None
    points: tuple[Point, ...]

    @property
    def subgraphs(self) -> int:
        return len({base_workload(task) for task in self.tasks})

    @property
    def library(self) -> Path:
        return self.folder / "model.so"

    @property
    def total_s(self) -> float:
        return self.start_s + self.job_s

    @property
    def trials_per_s(self) -> float:
        """Trials divided by all seconds, including the stack's start."""
        return self.job.trials_done / self.total_s

    @property
    def trials_per_s_started(self) -> float:
        """Trials divided by the seconds from upload to artifact, on a running stack."""
        return self.job.trials_done / self.job_s

    @property
    def search_trials_per_s(self) -> float | None:
        return self.job.trials_done / self.search_s if self.search_s else None


@dataclass(frozen=True)
class Session:
    """A running stack with its own data folder. Starting it took `start_s`."""

    client: Client
    check: Callable[[], None]
    console: Console
    start_s: float
    clock: Callable[[], float]

    def tune(
        self, model: Path, trials: int, folder: Path, *, minutes: float | None = None, tf32: bool = False
    ) -> Tuning:
        """Tune an ONNX file and unpack its artifact into `folder`. With 0 trials, compile it like `tunefarm
        compile`.

        Raises CommandError if the stack or the job fails, and ClientError.
        """
        folder.mkdir(exist_ok=True)
        recorder = Recorder(PlainJobDisplay(self.console))
        begun_s = self.clock()
        stored = self.client.upload(model)
        request = JobRequest(stored.sha256, trials, minutes=minutes, compile_only=trials == 0, tf32=tf32)
        job = self.client.submit(request)
        service = Service(self.client, self.check, embedded=True)
        job = follow_job(service, job.id, recorder, clock=self.clock)
        require_done(job)
        archive = folder / "artifact.tar"
        self.client.download(job.id, archive)
        unpack(archive, folder)
        done_s = self.clock()
        (device,) = (one for one in self.client.device_classes() if one.key == job.device_class)
        return Tuning(
            job,
            self.client.tasks(job.id),
            Limits.of(device),
            folder,
            TypeAdapter(Manifest).validate_json((folder / "manifest.json").read_bytes()),
            self.start_s,
            done_s - begun_s,
            recorder.search_s(),
            recorder.points(begun_s),
        )


@contextlib.contextmanager
def session(
    data: Path,
    threads: int,
    device_class: DeviceClass,
    console: Console,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Session]:
    """Start a stack with the empty folder `data`. Raises CommandError if it doesn't start."""
    before_s = clock()
    config = stack.StackConfig(data, threads=threads)
    with (
        device_class.for_workers(),
        stack.start(config) as started,
        Client(started.running.url) as client,
    ):
        yield Session(client, started.check, console, clock() - before_s, clock)

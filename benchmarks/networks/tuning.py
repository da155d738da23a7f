"""Tunes a model the way a user does: on an embedded stack with an empty data folder, timed from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks.results.curves import Point
from tunefarm import stack, transfer
from tunefarm.artifact import unpack
from tunefarm.client import Client
from tunefarm.estimate import network_s
from tunefarm.progress import Display, Picture, PlainDisplay
from tunefarm.service import Service
from tunefarm.tuning import require_done
from tunefarm.values import Job, JobRequest, JobState
from tunefarm.watching import watch


@dataclass
class Recorder:
    """A display that keeps what it is shown, and shows it on another one."""

    shown_on: Display
    pictures: list[Picture] = field(default_factory=list)

    def show(self, picture: Picture) -> None:
        self.shown_on.show(picture)
        self.pictures.append(picture)

    def points(self, start_s: float) -> tuple[Point, ...]:
        """The curve so far, a point for every change; `start_s` is when the job was submitted."""
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
        """Seconds from the first to the last picture of the job being tuned, about one second wrong."""
        seen = [picture.at_s for picture in self.pictures if picture.job.state is JobState.TUNING]
        return seen[-1] - seen[0] if len(seen) > 1 else None


@dataclass(frozen=True)
class Tuning:
    """A finished job; `library` and `manifest` are its artifact, `database` the folder of its exported one.

    `total_s` runs from before the stack's start until the artifact is unpacked, `start_s` of these are the
    stack's start, `search_s` what the job spent on trials, the first and the last build left out.
    """

    job: Job
    library: Path
    manifest: Path
    database: Path
    total_s: float
    start_s: float
    search_s: float | None
    points: tuple[Point, ...]

    @property
    def trials_per_s(self) -> float:
        """From start to finish, the stack's start included."""
        return self.job.trials_done / self.total_s

    @property
    def trials_per_s_started(self) -> float:
        """From the upload of the model to its artifact, on a stack that runs already."""
        return self.job.trials_done / (self.total_s - self.start_s)

    @property
    def search_trials_per_s(self) -> float | None:
        return self.job.trials_done / self.search_s if self.search_s else None


def tune(
    model: Path,
    *,
    trials: int,
    minutes: float | None,
    threads: int,
    folder: Path,
    console: Console,
    clock: Callable[[], float] = time.monotonic,
) -> Tuning:
    """Tunes an ONNX file in an empty `folder`, where the artifact and the stack's data stay.

    Raises CommandError when the stack breaks down or the job fails, ClientError as the client does.
    """
    recorder = Recorder(PlainDisplay(console))
    before_s = clock()
    config = stack.StackConfig(folder / "data", threads=threads)
    with stack.start(config) as started, Client(started.running.url) as client:
        ready_s = clock()
        stored = client.upload(model)
        job = client.submit(JobRequest(stored.sha256, trials, minutes=minutes))
        job = watch(Service(client, started.check, embedded=True), job.id, recorder, clock=clock)
        require_done(job)
        client.download(job.id, folder / "artifact.tar")
        unpack(folder / "artifact.tar", folder)
        done_s = clock()
        transfer.write(client.export(), folder)
    return Tuning(
        job,
        folder / "model.so",
        folder / "manifest.json",
        folder,
        done_s - before_s,
        ready_s - before_s,
        recorder.search_s(),
        recorder.points(ready_s),
    )

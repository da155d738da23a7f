"""From a model file to a folder with the compiled model: what `tune` and `compile` do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from core.durations import latency_text
from core.exit_code import ExitCode
from system.command import CommandError
from tunefarm.cli.follow import follow_job, require_done
from tunefarm.cli.progress import display, task_table
from tunefarm.client.artifact import unpack
from tunefarm.client.values import Job, JobRequest, Task
from tunefarm.embedded.service import Service


@dataclass(frozen=True)
class Tuned:
    """A finished job, and where its artifact was unpacked."""

    job: Job
    tasks: Sequence[Task]
    output: Path

    @property
    def speedup(self) -> float | None:
        """How many times faster than TVM's untuned build."""
        untuned, tuned = self.job.untuned_latency_s, self.job.tuned_latency_s
        return untuned / tuned if untuned and tuned else None

    def as_json(self) -> dict[str, Any]:
        return {
            "job": asdict(self.job),
            "untuned_latency_s": self.job.untuned_latency_s,
            "tuned_latency_s": self.job.tuned_latency_s,
            "speedup": self.speedup,
            "tasks": [asdict(task) for task in self.tasks],
            "artifact": str(self.output),
        }

    @property
    def gain_text(self) -> str:
        if not self.speedup:
            return "not measured"
        return f"{self.speedup:.1f}x faster" if self.speedup >= 1 else "slower: the untuned one is published"

    def print(self, console: Console) -> None:
        console.print(task_table(self.tasks))
        console.print()
        console.print(f"untuned   {latency_text(self.job.untuned_latency_s)}", highlight=False)
        console.print(
            f"tuned     {latency_text(self.job.tuned_latency_s)}   {self.gain_text}", highlight=False
        )
        console.print(f"artifact  {self.output}", highlight=False, markup=False, soft_wrap=True)


def make(
    service: Service, model: Path, request: JobRequest, output: Path, console: Console, *, silent: bool
) -> Tuned:
    """Uploads, starts or resumes the job, follows it and unpacks its artifact into `output`.

    Raises CommandError when the job fails or is cancelled; ClientError as the client does.
    """
    stored = service.client.upload(model)
    job = _start(service, replace(request, model=stored.sha256), console.print)
    try:
        with display(console, silent=silent) as shown:
            job = follow_job(service, job.id, shown)
    except KeyboardInterrupt as interrupt:
        raise CommandError(_interrupted(service, job), ExitCode.INTERRUPTED) from interrupt
    require_done(job)
    archive = output / ".artifact.tar"
    try:
        service.client.download(job.id, archive)
        unpack(archive, output)
    except OSError as error:
        raise CommandError(f"{archive} can't be written ({error.strerror})", ExitCode.LOCAL) from error
    finally:
        archive.unlink(missing_ok=True)
    return Tuned(job, service.client.tasks(job.id), output)


def _interrupted(service: Service, job: Job) -> str:
    if service.embedded:
        return "interrupted: the same command goes on where this one was"
    return f"interrupted: the job goes on; follow it with `tunefarm watch {job.id}` or cancel it"


def _start(service: Service, request: JobRequest, say: Callable[[str], None]) -> Job:
    """A new job; on a stack that was just started, the same job as before when that was interrupted."""
    if service.embedded:
        for job in service.client.jobs():
            if not job.state.finished and _asks_for(job, request):
                say(f"resuming job {job.id}, which was interrupted after {job.trials_done} trials")
                return job
    return service.client.submit(request)


def _asks_for(job: Job, request: JobRequest) -> bool:
    asked = JobRequest(
        job.model,
        job.trials,
        job.shapes,
        job.target,
        job.minutes,
        job.seed,
        compile_only=job.trials == 0,
        priority=job.priority,
        weight=job.weight,
        build=job.build,
    )
    return asked == request

"""`tunefarm tune` and `compile`: from an ONNX file to a folder with its compiled library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from core.durations import latency_text
from core.exit_code import ExitCode
from core.job import MAX_PRIORITY, MAX_TRIALS, Build
from system.command import CommandError
from tunefarm.cli.follow import follow_job, require_done
from tunefarm.cli.options import (
    AsJson,
    Data,
    Features,
    ModelFile,
    Output,
    Server,
    Shape,
    Target,
    Threads,
    Token,
    checked_features,
    checked_minutes,
    checked_model,
    checked_weight,
    parsed_shapes,
    prepared_output,
    print_json,
    stdout,
)
from tunefarm.cli.progress import display, task_table
from tunefarm.client.artifact import unpack
from tunefarm.client.values import Job, JobRequest, Task
from tunefarm.embedded.service import Service, connect_or_start
from tunefarm.settings import CommandSettings, load

DEFAULT_TRIALS = 1000
Exact = Annotated[
    bool,
    typer.Option("--exact", help="Keep operators as they are: no Winograd, which rounds differently."),
]


def tune(
    model: ModelFile,
    shape: Shape = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Measurements to spend [1000].")] = None,
    minutes: Annotated[float | None, typer.Option(help="Minutes to spend.")] = None,
    target: Target = "native",
    seed: Annotated[
        int,
        typer.Option(min=0, help="Seeds the search's random choices; measured times guide it as well."),
    ] = 0,
    priority: Annotated[
        int,
        typer.Option(
            min=-MAX_PRIORITY, max=MAX_PRIORITY, help="Jobs of higher priority get the devices first."
        ),
    ] = 0,
    weight: Annotated[float, typer.Option(help="Its part of them among jobs of equal priority.")] = 1.0,
    build: Annotated[
        Build, typer.Option(help="Who compiles the candidates: the device, a builder, or who is quicker.")
    ] = Build.AUTO,
    exact: Exact = False,
    output: Output = None,
    threads: Threads = None,
    features: Features = None,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Tune an ONNX model and write a compiled library, on a running service or one started for the job."""
    request = JobRequest(
        model="",  # known once the file is uploaded
        trials=trials or (DEFAULT_TRIALS if minutes is None else MAX_TRIALS),
        shapes=parsed_shapes(shape or ()),
        target=target,
        minutes=checked_minutes(minutes),
        seed=seed,
        priority=priority,
        weight=checked_weight(weight),
        build=build.value,
        exact=exact,
    )
    settings = load(server=server, token=token, data=data, threads=threads)
    _run_job(model, request, output, settings, features, as_json)


def compile_(
    model: ModelFile,
    shape: Shape = None,
    target: Target = "native",
    exact: Exact = False,
    output: Output = None,
    features: Features = None,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Compile an ONNX model at once, with the best schedules known and best guesses for the rest."""
    request = JobRequest("", 0, parsed_shapes(shape or ()), target, compile_only=True, exact=exact)
    _run_job(model, request, output, load(server=server, token=token, data=data), features, as_json)


@dataclass(frozen=True)
class TuneResult:
    """A finished job, and the folder that its artifact was unpacked into."""

    job: Job
    tasks: Sequence[Task]
    output: Path

    @property
    def speedup(self) -> float | None:
        """The untuned latency divided by the tuned one."""
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

    def print(self, console: Console) -> None:
        if not self.speedup:
            gain = "not measured"
        elif self.speedup >= 1:
            gain = f"{self.speedup:.1f}x faster"
        else:
            gain = "slower: the untuned one is published"
        console.print(task_table(self.tasks))
        console.print()
        console.print(f"untuned   {latency_text(self.job.untuned_latency_s)}", highlight=False)
        console.print(f"tuned     {latency_text(self.job.tuned_latency_s)}   {gain}", highlight=False)
        console.print(f"artifact  {self.output}", highlight=False, markup=False, soft_wrap=True)


def _run_job(
    model: Path,
    request: JobRequest,
    output: Path | None,
    settings: CommandSettings,
    features: str | None,
    as_json: bool,
) -> None:
    """Upload the model, start or resume its job, follow it, unpack its artifact and print the result.

    Raises CommandError when the job fails or is cancelled; ClientError as the client does.
    """
    checked_model(model)
    folder = prepared_output(output or Path(f"{model.stem}-tuned"))
    console = Console(stderr=True)
    with connect_or_start(settings, console.print, checked_features(features)) as service:
        client = service.client
        request = replace(request, model=client.upload(model).sha256)
        job = _interrupted_job(service, request)
        if job is not None:
            console.print(f"resuming job {job.id}, which was interrupted after {job.trials_done} trials")
        else:
            job = client.submit(request)
        try:
            with display(console, silent=as_json) as shown:
                job = follow_job(service, job.id, shown)
        except KeyboardInterrupt as interrupt:
            if service.embedded:
                hint = "the same command goes on where this one was"
            else:
                hint = f"the job goes on; follow it with `tunefarm watch {job.id}` or cancel it"
            raise CommandError(f"interrupted: {hint}", ExitCode.INTERRUPTED) from interrupt
        require_done(job)
        archive = folder / ".artifact.tar"
        try:
            client.download(job.id, archive)
            unpack(archive, folder)
        except OSError as error:
            raise CommandError(f"{archive} can't be written ({error.strerror})", ExitCode.LOCAL) from error
        finally:
            archive.unlink(missing_ok=True)
        result = TuneResult(job, client.tasks(job.id), folder)
    if as_json:
        print_json(result.as_json())
    else:
        result.print(stdout())


def _interrupted_job(service: Service, request: JobRequest) -> Job | None:
    """Return the unfinished job of an earlier embedded stack that asks for the same, if there is one."""
    if not service.embedded:
        return None
    for job in service.client.jobs():
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
            exact=job.exact,
        )
        if not job.state.finished and asked == request:
            return job
    return None

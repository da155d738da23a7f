"""`tunefarm diff` and `check`: compare the published models of two jobs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from core.durations import latency_text
from core.exit_code import ExitCode
from core.job import JobOptions, JobState
from core.model_latency import base_workload
from core.plain_text import without_controls
from system.command import CommandError
from tunefarm.cli.device_classes import name_of, named_classes
from tunefarm.cli.fitted import Column, FittedTable
from tunefarm.cli.options import (
    AsJson,
    Data,
    JobId,
    Server,
    Token,
    checked_model,
    opened,
    print_json,
    print_plain,
    stdout,
)
from tunefarm.cli.remarks import say
from tunefarm.client.artifact import published_tasks
from tunefarm.client.client import Client
from tunefarm.client.values import Job, PublishedTask, Release
from tunefarm.errors import InputError

COMPARED = (
    *("model_name", "model", "shapes", "target", "device_class", "trials", "minutes", "latency_s"),
    *("min_gain", "objective", "model_weight", *(option.name for option in fields(JobOptions))),
)
# The options whose values are device classes, and what they are called before a class's name.
CLASS_OPTIONS = {"target": "target", "device_class": "device"}
SHOWN_CHANGES = 10
COLUMNS = (
    Column("subgraph", text=True),
    Column.number("times", rank=2),
    Column.number("first"),
    Column.number("second"),
    Column("second is"),
    Column("schedule", rank=1),
)


@dataclass(frozen=True)
class Subgraph:
    """A subgraph in the artifacts of two jobs; None in one that doesn't have it.

    `workload` is the model's own, even if a variant computes it. `weights` are its numbers of occurrences.
    """

    workload: str
    name: str
    weights: tuple[int | None, int | None]
    latency_s: tuple[float | None, float | None]
    schedule: str

    @property
    def speedup(self) -> float | None:
        """The first latency divided by the second."""
        return _speedup(*self.latency_s)

    @property
    def is_changed(self) -> bool:
        return self.schedule != "same" or _speedup_text(self.speedup) not in ("same", "-")

    @property
    def gain_s(self) -> float:
        """Seconds that this subgraph saves in the second model; 0 if unknown."""
        first, second = self.latency_s
        if first is None or second is None:
            return 0.0
        return (self.weights[0] or 0) * first - (self.weights[1] or 0) * second


@dataclass(frozen=True)
class Difference:
    """Two finished jobs and their subgraphs, sorted by difference, the largest first."""

    jobs: tuple[Job, Job]
    subgraphs: Sequence[Subgraph]

    @property
    def options(self) -> dict[str, tuple[Any, Any]]:
        """The options that differ, by name."""
        pairs = {name: (getattr(self.jobs[0], name), getattr(self.jobs[1], name)) for name in COMPARED}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    @property
    def latency_s(self) -> tuple[float | None, float | None]:
        return self.jobs[0].published_latency_s, self.jobs[1].published_latency_s

    def as_json(self) -> dict[str, Any]:
        return {
            "jobs": [job.id for job in self.jobs],
            "latency_s": self.latency_s,
            "speedup": _speedup(*self.latency_s),
            "options": self.options,
            "subgraphs": [asdict(one) | {"speedup": one.speedup} for one in self.subgraphs],
        }


def diff(
    first: JobId,
    second: JobId,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Compare the published models of two jobs.

    Latencies and schedules are compared for each subgraph, then the options.
    """
    with opened(server, token, data) as service:
        found, classes = difference(service.client, first, second), named_classes(service.client)
    if as_json:
        print_json(found.as_json())
        return
    for which, job in zip(("first", "second"), found.jobs, strict=True):
        print_plain(f"{which:8}{job.model_name} on {name_of(classes, str(job.device_class))}, job {job.id}")
    FittedTable(COLUMNS, _rows(found)).print(stdout())
    for name, values in found.options.items():
        before, after = (name_of(classes, value) if name in CLASS_OPTIONS else value for value in values)
        print_plain(f"{CLASS_OPTIONS.get(name, name)}: {before} -> {after}")


def check(
    model: Annotated[
        str, typer.Argument(metavar="MODEL|JOB", help="A job, or a model's file: its newest job counts.")
    ],
    baseline: Annotated[str, typer.Option(metavar="NAME", help="The release to compare with.")],
    max_regression: Annotated[
        str, typer.Option(metavar="PERCENT", help="How much slower the model may be.")
    ] = "5%",
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Compare a model with a release, for continuous integration.

    Prints a comment in Markdown, with a warning if the release has another model or other shapes. Exit code
    11 means that the model is slower than allowed.
    """
    allowed = _parsed_percent(max_regression)
    with opened(server, token, data) as service:
        client = service.client
        job = _job_of(client, model)
        device = name_of(named_classes(client), str(job.device_class))
        release = _release(client.releases(), baseline, job, device)
        found = difference(client, release.job, job.id)
    before_s, now_s = found.latency_s
    if before_s is None or now_s is None:
        untimed = release.job if before_s is None else job.id
        raise CommandError(f"job {untimed} has no measured latency: tune it again", ExitCode.REFUSED)
    regression = now_s / before_s - 1
    is_slower = regression > allowed
    warnings = _warnings(*found.jobs, baseline)
    if as_json:
        own = {"baseline": baseline, "regression": regression, "allowed": allowed, "passed": not is_slower}
        print_json(own | {"warnings": warnings} | found.as_json())
    else:
        print_plain(_comment(found, baseline, device, regression, allowed, warnings))
    for warning in warnings:
        say(f"warning: {without_controls(warning)}")
    if is_slower:
        raise CommandError(
            f"{job.model_name} is {regression:.1%} slower than {baseline}, and {allowed:.1%} is allowed: "
            "compare the subgraphs above",
            ExitCode.REGRESSION,
        )


def _warnings(before: Job, now: Job, baseline: str) -> list[str]:
    """Return a sentence for each reason why the latencies of a release and a job may not be comparable."""
    warnings = []
    if before.model_name != now.model_name and before.model != now.model:
        warnings.append(
            f"{baseline} is another model, {before.model_name}, not {now.model_name}: "
            "compare with a release of the same model"
        )
    elif before.model != now.model:
        warnings.append(
            f"{baseline} was tuned from another file {now.model_name}, with SHA-256 {before.model[:12]}..., "
            f"not {now.model[:12]}...: a change of the model may explain the difference"
        )
    if before.shapes != now.shapes:
        warnings.append(
            f"{baseline} has other shapes, {_shapes_text(before)}, not {_shapes_text(now)}: "
            "compare jobs of the same shapes"
        )
    return warnings


def _shapes_text(job: Job) -> str:
    shapes = (f"{name}={','.join(map(str, shape))}" for name, shape in job.shapes.items())
    return " ".join(shapes) or "those of the file"


def difference(client: Client, first: str, second: str) -> Difference:
    """Compare two jobs, by their ids or the starts of these. Raises ClientError and CommandError."""
    jobs = [client.job(client.job_id(start)) for start in (first, second)]
    before, after = (_subgraphs(client, job) for job in jobs)
    found = [_subgraph(name, before.get(name), after.get(name)) for name in {**before, **after}]
    return Difference((jobs[0], jobs[1]), sorted(found, key=lambda one: -abs(one.gain_s)))


def _subgraphs(client: Client, job: Job) -> dict[str, PublishedTask]:
    """Return the subgraphs of a job's artifact, named by their nodes, by the model's own workload."""
    with tempfile.TemporaryDirectory(prefix="tunefarm-") as folder:
        archive = Path(folder) / "artifact.tar"
        client.download(job.id, archive)
        published = published_tasks(archive)
    tasks = {task.workload: task for task in client.tasks(job.id)}
    found = {}
    for one in published:
        task = tasks.get(one.workload)
        if task is None:
            found[one.workload] = one
        else:
            found[base_workload(task)] = replace(one, name=task.label)
    return found


def _subgraph(workload: str, first: PublishedTask | None, second: PublishedTask | None) -> Subgraph:
    both = (first, second)
    if first is None or second is None:
        schedule = "only in the second" if first is None else "only in the first"
    else:
        is_same = (first.workload, first.trace) == (second.workload, second.trace)
        schedule = "same" if is_same else "changed"
    name = without_controls(next(task.name for task in both if task is not None))
    weights, latencies = ([getattr(task, key, None) for task in both] for key in ("weight", "latency_s"))
    return Subgraph(workload, name, (weights[0], weights[1]), (latencies[0], latencies[1]), schedule)


def _job_of(client: Client, model: str) -> Job:
    """Return a job by its id, or the newest one that is done of a model's file."""
    file = Path(model)
    if not (file.exists() or file.suffix or len(file.parts) > 1):
        return client.job(client.job_id(model))
    sha = client.upload(checked_model(file)).sha256
    done = (job for job in client.jobs() if job.model == sha and job.state is JobState.DONE)
    job = next(done, None)
    if job is None:
        raise InputError(f"no job of {file} is done: run `tunefarm tune {file}` first")
    return job


def _release(releases: Sequence[Release], name: str, job: Job, device: str) -> Release:
    """Return the release with a name on the job's device class, which is called `device`.

    Raises CommandError.
    """
    for release in releases:
        if (release.name, release.device_class) == (name, job.device_class):
            return release
    known = sorted({release.name for release in releases if release.device_class == job.device_class})
    listed = ", ".join(known) if known else "none"
    raise CommandError(
        f"no release {name!r} is on {device} (known there: {listed}): "
        f"set one with `tunefarm release set {name} JOB`",
        ExitCode.REFUSED,
    )


def _parsed_percent(text: str) -> float:
    """Return a fraction from a text such as 5% or 2.5. Raises CommandError."""
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 1000:
        raise CommandError(
            f"--max-regression must be between 0% and 1000%, not {text!r}: write 5%", ExitCode.USAGE
        )
    return percent / 100


def _speedup(first_s: float | None, second_s: float | None) -> float | None:
    return first_s / second_s if first_s and second_s else None


def _speedup_text(speedup: float | None) -> str:
    if speedup is None:
        return "-"
    if f"{speedup:.2f}" == "1.00":
        return "same"
    return f"{speedup:.2f}x faster" if speedup > 1 else f"{1 / speedup:.2f}x slower"


def _times_text(weights: tuple[int | None, int | None]) -> str:
    known = dict.fromkeys(weight for weight in weights if weight is not None)
    return " -> ".join(map(str, known))


def _rows(found: Difference) -> list[tuple[str, ...]]:
    """Return the cells of each subgraph, and of the whole model."""
    rows = [
        (
            one.name,
            _times_text(one.weights),
            *map(latency_text, one.latency_s),
            _speedup_text(one.speedup),
            one.schedule,
        )
        for one in found.subgraphs
    ]
    latencies = map(latency_text, found.latency_s)
    return [*rows, ("whole model", "1", *latencies, _speedup_text(_speedup(*found.latency_s)), "")]


def _comment(
    found: Difference,
    baseline: str,
    device: str,
    regression: float,
    allowed: float,
    warnings: Sequence[str],
) -> str:
    """Return a comment in Markdown for a pull request."""
    before_s, now_s = found.latency_s
    before, now = found.jobs
    is_slower = regression > allowed
    percent = f"{abs(regression):.1%}"
    verdict = (
        "as fast as" if percent == "0.0%" else f"{percent} {'slower' if regression > 0 else 'faster'} than"
    )
    lines = [
        f"### {'❌' if is_slower else '✅'} {_cell(now.model_name)}: {verdict} `{baseline}`",
        "",
        *(f"⚠️ Warning: {_cell(warning)}.\n" for warning in warnings),
        f"At most {allowed:.1%} slower is allowed. Measured on {_cell(device)}.",
        "",
        f"| | `{baseline}` (`{before.id}`) | `{now.id}` | change |",
        "|---|---:|---:|---|",
        _row("whole model", (before_s, now_s)),
    ]
    changed = [
        one for one in found.subgraphs if one.schedule != "same" or _speedup_text(one.speedup) != "same"
    ]
    lines += [_row(_cell(one.name), one.latency_s) for one in changed[:SHOWN_CHANGES]]
    if len(changed) > SHOWN_CHANGES:
        lines += ["", f"{len(changed) - SHOWN_CHANGES} more subgraphs changed."]
    return "\n".join(lines)


def _row(name: str, latency_s: tuple[float | None, float | None]) -> str:
    first, second = map(latency_text, latency_s)
    return f"| {name} | {first} | {second} | {_speedup_text(_speedup(*latency_s))} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

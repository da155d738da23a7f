"""`tunefarm tune` and `compile`: compile model files, and write a folder with the library of each."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from core import library_weights
from core.durations import latency_text, times_text
from core.exit_code import ExitCode
from core.job import MAX_TRIALS, MAX_WEIGHT, MIN_WEIGHT, JobOptions, JobState, Quantize, options_of
from core.model_latency import network_s
from core.quantization import Quantization
from system.command import CommandError
from tunefarm.cli.compiled import fetch_artifact
from tunefarm.cli.device_classes import name_of, named_classes
from tunefarm.cli.fitted import Column, FittedTable
from tunefarm.cli.follow import follow_job, require_done
from tunefarm.cli.job_options import with_job_options
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
    checked_npz,
    parsed_shapes,
    prepared_output,
    print_json,
    stdout,
)
from tunefarm.cli.progress import display, footprint_text, layer_table, task_table
from tunefarm.cli.remarks import remarks
from tunefarm.client.artifact import QUANTIZED
from tunefarm.client.client import Client, ClientError
from tunefarm.client.sizes import IncompleteShape, Size, SizesError, sizes_of
from tunefarm.client.values import Job, JobRequest, ModelRequest, OnnxRuntime, Task
from tunefarm.embedded.service import Service, connect, connect_or_start
from tunefarm.errors import InputError
from tunefarm.settings import CommandSettings, load

DEFAULT_TRIALS = 1000
# A program that runs a compiled model.
_RUN = "import tunefarm_runtime; print(tunefarm_runtime.load({}).benchmark())"
TARGET_COLUMNS = (
    Column("target", text=True),
    Column("model", text=True),
    Column.number("untuned", rank=2),
    Column.number("tuned"),
    Column.number("vs. untuned", rank=1),
    Column.number("vs. ONNX Runtime"),
)
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        help="A device class, or `native` for any device that is ready [native]; give it once for each.",
    ),
]
Bundle = Annotated[
    bool,
    typer.Option("--bundle", help="Also write what C and C++ programs need to run the model."),
]


@with_job_options
def tune(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL")],
    shape: Shape = None,
    trials: Annotated[
        int | None, typer.Option(min=1, max=MAX_TRIALS, help="Measurements to spend [1000].")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Minutes to search, after the import.")] = None,
    latency_ms: Annotated[
        list[float] | None,
        typer.Option(
            help="Stop when the estimated latency of the model is this low; give it once for each model."
        ),
    ] = None,
    until_gain: Annotated[
        float | None,
        typer.Option(metavar="PERCENT", help="Stop when the next minute is expected to gain less than this."),
    ] = None,
    model_weight: Annotated[
        list[float] | None,
        typer.Option(help="A model's weight in the objective; give it once for each model."),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="What to minimize: sum, requirements, speedup, early-stopping, or an installed one."
        ),
    ] = None,
    target: Targets = None,
    matrix: Annotated[
        bool,
        typer.Option(
            help="Print one table of models and devices; without --target, of all devices that are ready."
        ),
    ] = False,
    *,
    options: JobOptions,
    output: Output = None,
    bundle: Bundle = False,
    threads: Threads = None,
    features: Features = None,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Tune models and write their compiled libraries.

    A running service does the work, or one that is started for the job.

    Several models, and several sizes of one, share the trials and the subgraphs that they have in common.
    Several targets get a job and a folder each.
    """
    weights = per_model("--model-weight", model_weight, 1.0, len(models), MIN_WEIGHT, MAX_WEIGHT)
    wanted = per_model("--latency-ms", latency_ms, None, len(models), 0, math.inf)
    latencies = [None if ms is None else ms / 1e3 for ms in wanted]
    if until_gain is not None and not 0 < until_gain < 100:
        raise CommandError(f"--until-gain must be between 0 and 100, not {until_gain:g}", ExitCode.USAGE)
    has_goal = minutes is not None or until_gain is not None or latency_ms
    request = JobRequest(
        model="",  # filled in after the upload
        trials=trials or (MAX_TRIALS if has_goal else DEFAULT_TRIALS),
        shapes=parsed_shapes(shape or ()),
        minutes=checked_minutes(minutes),
        latency_s=latencies[0],
        min_gain=None if until_gain is None else until_gain / 100,
        objective=objective,
        model_weight=weights[0] or 1.0,
        others=tuple(
            ModelRequest("", model_weight=weight or 1.0, latency_s=latency_s)
            for weight, latency_s in zip(weights[1:], latencies[1:], strict=True)
        ),
        **options_of(options),
    )
    settings = load(server=server, token=token, data=data, threads=threads)
    targets = {one: one for one in target or ()}
    if len(targets) < len(target or ()):
        raise CommandError("a --target is given twice: leave one out", ExitCode.USAGE)
    if matrix and not targets:
        targets = _ready_targets(settings)
    elif matrix or len(targets) > 1:
        # A service that is started for the command knows no class yet.
        with contextlib.suppress(CommandError), connect(settings) as service:
            classes = named_classes(service.client)
            targets = {one: name_of(classes, one) for one in targets}
    tuning = Tuning(models, request, output, bundle, targets)
    _run_and_print(tuning, settings, features, as_json, matrix=matrix)


def _ready_targets(settings: CommandSettings) -> dict[str, str]:
    """Return the names of the classes that have connected workers, by their targets. Raises CommandError and
    ClientError.
    """
    with connect(settings) as service:
        targets = {one.target: one.name for one in named_classes(service.client).values() if one.is_ready}
    if not targets:
        raise CommandError("no device is ready: attach one with `tunefarm worker`", ExitCode.REFUSED)
    return targets


def per_model(
    flag: str, given: Sequence[float] | None, otherwise: float | None, models: int, least: float, most: float
) -> list[float | None]:
    """Return a flag's value for each model, `otherwise` if it isn't given. Raises CommandError."""
    if not given:
        return [otherwise] * models
    if len(given) != models:
        raise CommandError(
            f"{flag} is given {len(given)} times for {models} models: give it once for each, in their order",
            ExitCode.USAGE,
        )
    for number in given:
        if not (least <= number <= most and 0 < number < math.inf):
            bounds = "more than 0" if most == math.inf else f"between {least:g} and {most:g}"
            raise CommandError(f"{flag} must be {bounds}, not {number:g}", ExitCode.USAGE)
    return list(given)


@with_job_options
def compile_(
    model: ModelFile,
    shape: Shape = None,
    target: Target = "native",
    *,
    options: JobOptions,
    output: Output = None,
    bundle: Bundle = False,
    features: Features = None,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Compile a model with the best known schedules, without trials.

    Subgraphs without a known schedule get a best guess.
    """
    shapes = parsed_shapes(shape or ())
    request = JobRequest("", 0, shapes, target, compile_only=True, **options_of(options))
    settings = load(server=server, token=token, data=data)
    _run_and_print(Tuning([model], request, output, bundle), settings, features, as_json)


@dataclass(frozen=True)
class Tuning:
    """Models to tune with one request, and where to write their libraries.

    The request's `shapes` come from `tunefarm.client.sizes.sizes_of`, for all models. Its `calibration` is
    the path of a file. Several `targets`, which replace the request's target, get a job each, and the jobs
    run at the same time. Without `output`, each model gets a folder in the working directory.
    """

    files: Sequence[Path]
    request: JobRequest
    output: Path | None = None
    bundle: bool = False
    targets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TuneResult:
    """A finished job, and the folder `output` with its unpacked artifact.

    `model` is the tuned model's file, or the quantized model if the service quantized it. `page` is the
    address of the job's page; None if the service ended with the command. Then `page_hint` says how to see
    it. For a model in several `sizes`, `tunefarm.tune` returns the first size, with the folder that holds all
    of them.
    """

    job: Job
    tasks: Sequence[Task]
    output: Path
    model: Path
    page: str | None = None
    page_hint: str = ""
    sizes: Sequence[TuneResult] = ()
    quantization: Quantization | None = None

    @property
    def speedup(self) -> float | None:
        """The untuned latency divided by the tuned one."""
        untuned, tuned = self.job.untuned_latency_s, self.job.tuned_latency_s
        return untuned / tuned if untuned and tuned else None

    @property
    def gain(self) -> str:
        """A phrase that compares the published model with the untuned one."""
        if not self.speedup:
            return "not measured"
        if self.speedup >= 1:
            return f"{self.speedup:.1f}x faster than untuned"
        return "slower: the untuned one is published"

    def as_json(self) -> dict[str, Any]:
        return {
            "job": asdict(self.job),
            "untuned_latency_s": self.job.untuned_latency_s,
            "tuned_latency_s": self.job.tuned_latency_s,
            "tuned_interval_s": self.job.tuned_interval_s,
            "noisy": self.job.noisy,
            "speedup": self.speedup,
            "tasks": [asdict(task) for task in self.tasks],
            "artifact": str(self.output),
            "page": self.page,
            "quantization": None if self.quantization is None else asdict(self.quantization),
        }

    def print(self, console: Console) -> None:
        lines = [
            ("tuned", f"{latency_text(self.job.tuned_latency_s)}   {self.gain}"),
            ("between", self._interval),
            ("kernels", self._kernels),
            ("untuned", latency_text(self.job.untuned_latency_s)),
            ("footprint", footprint_text(self.job.footprint)),
            ("ended", self.job.end_reason.text if self.job.end_reason is not None else ""),
            ("message", self._remarks),
            ("artifact", str(self.output)),
            ("job", self.job.id),
            ("page", self.page or self.page_hint),
            ("run", shlex.join([_program("python"), "-c", _RUN.format(json.dumps(str(self.output)))])),
            ("compare", shlex.join([_program("tunefarm"), "bench", str(self.output), *self._against])),
        ]
        task_table(self.tasks).print(console)
        if self.quantization is not None:
            console.print()
            console.print(layer_table(self.quantization))
        console.print()
        console.print(self._comparison, highlight=False, markup=False, soft_wrap=True)
        for name, text in lines:
            if text:
                console.print(f"{name:10}{text}", highlight=False, markup=False, soft_wrap=True)

    @property
    def _interval(self) -> str:
        """The confidence interval of the tuned latency, and whether it is noisy; "" if unknown."""
        if self.job.tuned_interval_s is None:
            return ""
        low, high = map(latency_text, self.job.tuned_interval_s)
        noisy = "; noisy: the device was disturbed" if self.job.noisy else ""
        return f"{low} and {high} with 95% confidence{noisy}"

    @property
    def _kernels(self) -> str:
        """The total time of the published model's kernels, timed separately; "" if unknown."""
        secs = network_s(self.tasks)
        if secs is None or not self.job.tuned_latency_s:
            return ""
        share = secs / self.job.tuned_latency_s
        if share > 2:
            cause = "in the model, weights stay in the caches, or the device was disturbed before"
            return f"{latency_text(secs)}   {share:.1f} times as long, timed one by one: {cause}"
        return f"{latency_text(secs)}   {share:.0%} of it, timed one by one and added up"

    @property
    def _comparison(self) -> str:
        """A phrase that compares the published model with ONNX Runtime, or says why that wasn't possible."""
        peer = self.job.onnxruntime or OnnxRuntime(note="this service doesn't time it")
        if peer.ratio is None:
            return f"not compared with ONNX Runtime: {peer.note}"
        runtime = f"ONNX Runtime {peer.version} on this device ({latency_text(peer.latency_s)})"
        return f"{times_text(peer.ratio, ' times')} as fast as {runtime}"

    @property
    def _remarks(self) -> str:
        """The job's message without the comparisons, which other lines have."""
        tuned, untuned = map(latency_text, (self.job.tuned_latency_s, self.job.untuned_latency_s))
        gain = (
            rf"{re.escape(tuned)}( \(.* with 95% confidence\))?, "
            rf"([\d.]+ times faster than|as fast as) untuned \({re.escape(untuned)}\)"
        )
        parts = self.job.message.split("; ")
        return "; ".join(
            part for part in parts if part != self._comparison and re.fullmatch(gain, part) is None
        )

    @property
    def _against(self) -> list[str]:
        """The option of `tunefarm bench` that names the model, if another runtime may read its file."""
        return ["--against", str(self.model)] if self.model.suffix in (".onnx", ".pt2") else []


def _run_and_print(
    tuning: Tuning,
    settings: CommandSettings,
    features: str | None,
    as_json: bool,
    *,
    matrix: bool = False,
) -> None:
    jobs, results = run_job(tuning, settings, features, silent=as_json)
    if as_json and results:
        print_json(results[0].as_json() if len(jobs) == 1 else [result.as_json() for result in results])
    elif not as_json and matrix:
        stdout().print(_matrix(jobs, tuning.targets))
    elif not as_json and len(tuning.targets) > 1:
        _print_targets(stdout(), jobs, results, tuning.targets)
    elif not as_json:
        for result in results:
            result.print(stdout())
    for job in jobs:
        require_done(job)


def _print_targets(
    console: Console, jobs: Sequence[Job], results: Sequence[TuneResult], targets: Mapping[str, str]
) -> None:
    """Print a table with a row for each job, then where its library is, or the reason if there is none."""
    published = {result.job.id: result for result in results}
    rows, places = [], []
    for job in jobs:
        result, target = published.get(job.id), targets[job.target]
        speedup = None if result is None else result.speedup
        rows.append(
            (
                target,
                job.model_name,
                latency_text(job.untuned_latency_s),
                str(job.state) if result is None else latency_text(job.tuned_latency_s),
                "-" if speedup is None else times_text(speedup, "x"),
                job.onnxruntime_text,
            )
        )
        place = (job.error or job.message) if result is None else result.output
        places.append(f"{target}, {job.model_name}: {place}, job {job.id}")
    FittedTable(TARGET_COLUMNS, rows).print(console)
    for line in ("", *places):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _matrix(jobs: Sequence[Job], targets: Mapping[str, str]) -> Table:
    """Return a row for each model and size, with its latency and its speed-up over ONNX Runtime on each
    target. `targets` have names, the titles of the columns.
    """
    table = Table("model", *map(escape, targets.values()), box=None, pad_edge=False)
    rows: dict[str, dict[str, str]] = {}
    for job in jobs:
        shapes = " ".join(f"{name}={','.join(map(str, shape))}" for name, shape in job.shapes.items())
        peer = job.onnxruntime
        ratio = "" if peer is None or peer.ratio is None else f" ({times_text(peer.ratio, 'x')} ONNX Runtime)"
        cell = f"{latency_text(job.published_latency_s)}{ratio}" if job.state is JobState.DONE else job.state
        rows.setdefault(f"{job.model_name} {shapes}".strip(), {})[job.target] = cell
    for name, cells in rows.items():
        table.add_row(escape(name), *(cells.get(target, "-") for target in targets))
    return table


def run_job(
    tuning: Tuning, settings: CommandSettings, features: str | None = None, *, silent: bool = False
) -> tuple[list[Job], list[TuneResult]]:
    """Upload the models, start or resume their job, follow it, and unpack the artifacts.

    Return a job for each size of each model on each target, and the results of the finished jobs.

    Raises CommandError if a model or a folder can't be used; ClientError.
    """
    files, request, output = tuning.files, tuning.request, tuning.output
    names = [f"{checked_model(file).stem}-tuned" for file in files]
    if len(set(names)) < len(names):
        raise CommandError("two models have the same file name: rename one", ExitCode.USAGE)
    sizes = _checked_sizes(files, request)
    root = output or Path()
    parents = [root / name for name in names] if len(files) > 1 else [output or Path(names[0])]
    calibration = None if request.calibration is None else checked_npz(Path(request.calibration))
    targets = tuning.targets or {request.target: request.target}
    folders = [
        [
            prepared_output(parent / place / size.name)
            for parent, own in zip(parents, sizes, strict=True)
            for size in own
        ]
        for place in _folder_names(list(targets.values()))
    ]
    console = remarks()
    with connect_or_start(settings, console.print, checked_features(features)) as service:
        client = service.client
        try:
            uploaded = [client.upload(file).sha256 for file in files]
        except OSError as error:
            raise InputError(f"{error.filename}, of the model, can't be read ({error.strerror})") from error
        if calibration is not None:
            try:
                request = replace(request, calibration=client.upload_dataset(calibration).sha256)
            except OSError as error:
                raise InputError(f"{calibration} can't be read ({error.strerror})") from error
        request = _in_sizes(request, uploaded, sizes)
        started = _start(service, [replace(request, target=target) for target in targets], console.print)
        try:
            with display(console, silent=silent) as shown:
                groups = [
                    [follow_job(service, one, shown) for one in job.members or (job.id,)] for job in started
                ]
        except KeyboardInterrupt as interrupt:
            if service.embedded:
                hint = "give the same command to continue"
            else:
                watching = ", ".join(f"`tunefarm watch {job.id}`" for job in started)
                hint = f"the service goes on; follow it with {watching} or cancel it"
            raise CommandError(f"interrupted: {hint}", ExitCode.INTERRUPTED) from interrupt
        models = [(file, bool(size.name)) for file, own in zip(files, sizes, strict=True) for size in own]
        results = [
            _fetch(service, job, file, folder, settings, tuning.bundle, is_size)
            for jobs, own_folders in zip(groups, folders, strict=True)
            for job, (file, is_size), folder in zip(jobs, models, own_folders, strict=True)
            if job.state is JobState.DONE
        ]
        sized = [
            folder
            for own_folders in folders
            for (_, is_size), folder in zip(models, own_folders, strict=True)
            if is_size
        ]
        for shared in {folder.parent / library_weights.FOLDER for folder in sized}:
            library_weights.remove_unused(shared)
        return [job for jobs in groups for job in jobs], results


def _folder_names(targets: Sequence[str]) -> list[str]:
    """Return a folder's name for each target's name; "" for a single one. Raises CommandError if two are
    equal.
    """
    if len(targets) == 1:
        return [""]
    names = [re.sub(r"[^\w.-]+", "-", target).strip(".-") or "target" for target in targets]
    for name, target in zip(names, targets, strict=True):
        if names.count(name) > 1:
            raise CommandError(
                f"two targets would write to the folder {name}: leave --target {target!r} out", ExitCode.USAGE
            )
    return names


def _start(service: Service, requests: Sequence[JobRequest], say: Callable[[str], None]) -> list[Job]:
    """Submit the requests, or resume their interrupted jobs. If one is refused, cancel the earlier ones."""
    started: list[Job] = []
    submitted: list[Job] = []
    for request in requests:
        job = _interrupted_job(service, request)
        if job is not None:
            say(f"resuming job {job.id}, which was interrupted after {job.trials_done} trials")
        else:
            try:
                job = service.client.submit(request)
            except ClientError:
                for other in submitted:
                    service.client.cancel(other.id)
                raise
            submitted.append(job)
        started.append(job)
    return started


def _checked_sizes(files: Sequence[Path], request: JobRequest) -> list[list[Size]]:
    """Return the sizes of each model. Raises CommandError."""
    try:
        return sizes_of(files, request.shapes, request.batch)
    except SizesError as error:
        raise CommandError(f"--shape doesn't fit: {error}", ExitCode.USAGE) from error
    except IncompleteShape as error:
        raise InputError(str(error)) from error
    except OSError as error:
        raise InputError(f"{error.filename} can't be read ({error.strerror})") from error


def _in_sizes(request: JobRequest, uploaded: Sequence[str], sizes: Sequence[Sequence[Size]]) -> JobRequest:
    """Return the request for models, by their SHA-256, in all of their sizes."""
    own_request = ModelRequest("", model_weight=request.model_weight, latency_s=request.latency_s)
    asked = [
        replace(one, model=sha, shapes=size.shapes)
        for one, sha, own in zip((own_request, *request.others), uploaded, sizes, strict=True)
        for size in own
    ]
    objective = request.objective
    if any(len(own) > 1 for own in sizes) and not all(one.latency_s for one in asked):
        # In a sum, the largest size would get most of the trials.
        objective = objective or "speedup"
    first, others = asked[0], tuple(asked[1:])
    return replace(request, model=first.model, shapes=first.shapes, objective=objective, others=others)


def _page_hint(settings: CommandSettings, job: Job) -> str:
    """Say how to see the page of a job whose service ends with the command."""
    is_default = settings.data == CommandSettings.model_fields["data"].get_default(call_default_factory=True)
    data = [] if is_default else ["--data", str(settings.data)]
    scheme = "http" if settings.tls_cert is None else "https"
    page = f"{scheme}://{settings.host}:{settings.port or 'PORT'}/#/jobs/{quote(job.id)}"
    up, report = (
        shlex.join([_program("tunefarm"), *command, *data]) for command in (["up"], ["report", job.id])
    )
    return f"`{up}`, then {page}; or as a file: `{report}`"


def _program(name: str) -> str:
    """Return how the user's shell starts a program of this environment: by its name, or by its path if the
    shell would find no program or another environment's.
    """
    own = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and Path(found).parent.resolve() == own.parent.resolve():
        return name
    return str(own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own)


def _fetch(
    service: Service,
    job: Job,
    model: Path,
    folder: Path,
    settings: CommandSettings,
    bundle: bool,
    is_size: bool,
) -> TuneResult:
    """Unpack the artifact or the bundle of a finished job. Write the quantized model, if any, beside it.

    Sizes share the files of their weights, but each bundle holds its own. Raises CommandError, ClientError.
    """
    client = service.client
    shared = folder.parent / library_weights.FOLDER if is_size and not bundle else None
    fetch_artifact(
        folder, lambda archive: client.download(job.id, archive, bundle=bundle), bundle=bundle, weights=shared
    )
    page = None if service.embedded else f"{client.url}/#/jobs/{quote(job.id)}"
    hint = "" if page else _page_hint(settings, job)
    form = None
    if job.quantize is not Quantize.NONE:
        form, model = client.quantization(job.id), folder / QUANTIZED
        try:
            client.download_quantized(job.id, model)
        except OSError as error:
            raise CommandError(f"{model} can't be written ({error.strerror})", ExitCode.LOCAL) from error
    return TuneResult(job, client.tasks(job.id), folder, model, page, hint, quantization=form)


def _interrupted_job(service: Service, request: JobRequest) -> Job | None:
    """Return the unfinished job of an equal request in an earlier embedded stack, if any."""
    if not service.embedded:
        return None
    for job in service.client.jobs():
        is_first = not job.members or job.members[0] == job.id
        if (
            not job.state.finished
            and is_first
            and job.infers is None
            and _asked(service.client, job, request) == request
        ):
            return job
    return None


def _asked(client: Client, job: Job, request: JobRequest) -> JobRequest | None:
    """Return the options of a job that differ from the defaults of `request`; None for another number of
    models."""
    others = [client.job(other) for other in job.members[1:]]
    if len(others) != len(request.others):
        return None
    return JobRequest(
        job.model,
        job.trials,
        # The shapes of a batch are known once the model has been read.
        request.shapes if job.batch is not None else job.shapes,
        job.target,
        job.minutes,
        compile_only=job.trials == 0,
        latency_s=job.latency_s,
        min_gain=job.min_gain,
        objective=request.objective and job.objective,
        model_weight=job.model_weight,
        others=tuple(
            ModelRequest(
                other.model,
                mine.shapes if job.batch is not None else other.shapes,
                model_weight=other.model_weight,
                latency_s=other.latency_s,
            )
            for other, mine in zip(others, request.others, strict=True)
        ),
        **(options_of(job) | {"weight": min(job.weight * max(len(job.members), 1), MAX_WEIGHT)}),
    )

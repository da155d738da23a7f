"""The `tunefarm` command."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from core.durations import latency_text
from core.exit_code import ExitCode
from core.job import MAX_TRIALS, Build
from tunefarm.cli import accuracy, tokens, workers
from tunefarm.cli.exits import run
from tunefarm.cli.follow import follow_job, require_done
from tunefarm.cli.inputs import (
    checked_features,
    checked_minutes,
    checked_model,
    checked_weight,
    parsed_shapes,
    prepared_output,
)
from tunefarm.cli.options import (
    AsJson,
    Data,
    Features,
    JobId,
    ModelFile,
    Output,
    Server,
    Shape,
    Target,
    Threads,
    Token,
    print_json,
    running,
    say,
    stdout,
)
from tunefarm.cli.progress import display, task_table
from tunefarm.client.client import Client
from tunefarm.client.values import Job, JobRequest
from tunefarm.embedded.service import Service, StackMonitor, connect_or_start, wait_for_device
from tunefarm.settings import CommandSettings, load

EPILOG = "Exit codes: " + "; ".join(f"{int(code)} {code.meaning}" for code in ExitCode) + "."
DEFAULT_TRIALS = 1000
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(
    help="Makes a neural network run faster on the device that will run it.",
    epilog=EPILOG,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(tokens.app, name="token")
app.add_typer(workers.app, name="workers")
app.command()(workers.calibrate)


@app.command()
def tune(
    model: ModelFile,
    shape: Shape = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Measurements to spend [1000].")] = None,
    minutes: Annotated[float | None, typer.Option(help="Minutes to spend.")] = None,
    target: Target = "native",
    seed: Annotated[int, typer.Option(min=0, help="Makes the search repeatable.")] = 0,
    priority: Annotated[
        int,
        typer.Option(min=-1_000_000, max=1_000_000, help="Jobs of higher priority get the devices first."),
    ] = 0,
    weight: Annotated[float, typer.Option(help="Its part of them among jobs of equal priority.")] = 1.0,
    build: Annotated[
        Build, typer.Option(help="Who compiles the candidates: the device, a builder, or who is quicker.")
    ] = Build.AUTO,
    output: Output = None,
    threads: Threads = None,
    features: Features = None,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Tune an ONNX model and write a compiled library, on a running service or one started for the job."""
    budget = trials or (DEFAULT_TRIALS if minutes is None else MAX_TRIALS)
    request = JobRequest(
        "",
        budget,
        parsed_shapes(shape or ()),
        target,
        checked_minutes(minutes),
        seed,
        priority=priority,
        weight=checked_weight(weight),
        build=build.value,
    )
    settings = load(server=server, token=token, data=data, threads=threads)
    _make(model, request, output, settings, features, as_json)


@app.command("compile")
def compile_(
    model: ModelFile,
    shape: Shape = None,
    target: Target = "native",
    output: Output = None,
    features: Features = None,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Compile an ONNX model at once, with the best schedules known and best guesses for the rest."""
    request = JobRequest("", 0, parsed_shapes(shape or ()), target, compile_only=True)
    _make(model, request, output, load(server=server, token=token, data=data), features, as_json)


def _make(
    model: Path,
    request: JobRequest,
    output: Path | None,
    settings: CommandSettings,
    features: str | None,
    as_json: bool,
) -> None:
    from tunefarm.cli import tuning

    checked_model(model)
    folder = prepared_output(output or Path(f"{model.stem}-tuned"))
    errors = Console(stderr=True)
    with connect_or_start(settings, errors.print, checked_features(features)) as found:
        tuned = tuning.make(found, model, request, folder, errors, silent=as_json)
    if as_json:
        print_json(tuned.as_json())
    else:
        tuned.print(stdout())


@app.command()
def up(
    host: Annotated[str | None, typer.Option(help="The address to listen on [127.0.0.1].")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="For HTTP [8760]; 0: any free one.")
    ] = None,
    grpc_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="For workers [8761]; 0: any free one.")
    ] = None,
    threads: Threads = None,
    features: Features = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Run the whole service here: server, scheduler and one worker. Ctrl-C stops it; jobs go on next time."""
    from tunefarm.embedded import stack

    flags = {
        "host": host,
        "port": port,
        "grpc_port": grpc_port,
        "threads": threads,
        "token": token,
        "data": data,
    }
    settings = load(**flags)
    config = stack.StackConfig(
        settings.data,
        settings.host,
        settings.port,
        settings.grpc_port,
        settings.secret,
        settings.threads,
        lasting=True,
        features=checked_features(features),
        tls=settings.server_tls,
        trust=settings.tls,
    )
    try:
        with stack.start(config) as started:
            _say_where(started.running.url, started.running.workers_address, started.folder.path, as_json)
            client = Client(started.running.url, settings.secret, tls=settings.tls)
            own = StackMonitor(started, client)
            told: dict[str, str] = {}
            while True:
                started.check()
                unable = {one.id: one.unable for one in own.workers() if one.unable}
                for name, why in unable.items() - told.items():
                    say(f"worker {name} {why}")
                told = unable
                time.sleep(1.0)
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped")


def _say_where(url: str, workers: str, data: Path, as_json: bool) -> None:
    if as_json:
        print_json({"url": url, "workers": workers, "data": str(data), "pid": os.getpid()})
        return
    lines = (
        f"tunefarm is up at {url}",
        f"  workers connect to {workers}",
        f"  data and logs are in {data}",
        "  Ctrl-C stops it",
    )
    stdout().print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


@app.command("server", context_settings=PASS_ON)
def server_(context: typer.Context) -> None:
    """Run the HTTP and gRPC server alone. `tunefarm server --help` shows its options."""
    _become("server", context.args)


@app.command(context_settings=PASS_ON)
def scheduler(context: typer.Context) -> None:
    """Run a scheduler alone."""
    _become("scheduler", context.args)


@app.command(context_settings=PASS_ON)
def worker(context: typer.Context) -> None:
    """Run a worker on this device: `tunefarm worker --server HOST:PORT --token TOKEN`."""
    _become("worker", context.args)


def _become(package: str, arguments: Sequence[str]) -> NoReturn:
    # -P: a folder of the same name where the user stands is not our package
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path.rstrip(os.pathsep)}
    os.execve(sys.executable, [sys.executable, "-P", "-m", package, *arguments], environment)


@app.command()
def jobs(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Show this job with its tasks.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, or show one."""
    with running(server, token, data) as found:
        if job is not None:
            _show_job(found, job, as_json)
            return
        known = list(islice(found.client.jobs(), limit))
    if as_json:
        print_json([asdict(one) for one in known])
    else:
        stdout().print(_job_table(known))


def _show_job(found: Service, job_id: str, as_json: bool) -> None:
    job, tasks = found.client.job(job_id), found.client.tasks(job_id)
    if as_json:
        print_json(asdict(job) | {"tasks": [asdict(task) for task in tasks]})
        return
    stdout().print(_job_table([job]))
    stdout().print(job.error or job.message, markup=False, highlight=False)
    stdout().print(task_table(tasks))


def _job_table(known: Sequence[Job]) -> Table:
    table = Table("job", "model", "state", "trials", "untuned", "tuned", "created", box=None, pad_edge=False)
    for job in known:
        created = datetime.fromtimestamp(job.created_at).isoformat(" ", "seconds")
        latencies = latency_text(job.untuned_latency_s), latency_text(job.tuned_latency_s)
        table.add_row(job.id, job.model_name, job.state, job.trials_text, *latencies, created)
    return table


@app.command()
def watch(
    job: JobId, server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Follow a job to its end."""
    with running(server, token, data) as found, display(Console(stderr=True), silent=as_json) as shown:
        finished = follow_job(found, job, shown)
    if as_json:
        print_json(asdict(finished))
    else:
        stdout().print(_job_table([finished]))
    require_done(finished)


@app.command()
def cancel(
    job: JobId, server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Cancel a job."""
    with running(server, token, data) as found:
        cancelled = found.client.cancel(job)
    print_json(asdict(cancelled)) if as_json else stdout().print(f"job {cancelled.id} is cancelled")


@app.command()
def delete(
    job: JobId, server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Delete a finished job and its artifact. What was measured for it stays."""
    with running(server, token, data) as found:
        found.client.delete(job)
    if as_json:
        print_json({"deleted": job})
    else:
        stdout().print(f"job {job} is deleted", markup=False, highlight=False)


@app.command()
def model(
    device: Annotated[
        str | None, typer.Option("--device", metavar="CLASS", help="Only of this device class.")
    ] = None,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show how well the learned cost model of each device class predicts."""
    with running(server, token, data) as found:
        known = found.client.cost_models(device)
    if as_json:
        print_json([asdict(one) for one in known])
    elif known:
        stdout().print(accuracy.summary(known))
        stdout().print(accuracy.LEGEND, markup=False, highlight=False, style="dim")
    else:
        stdout().print("no cost model was trained yet: that begins with the first trials, tune a model")


@app.command()
def best(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="A workload's hash, see `jobs JOB --json`.")
    ],
    target: Target = "native",
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show the best schedule known of a workload."""
    with connect_or_start(load(server=server, token=token, data=data), say) as found:
        wait_for_device(found, target)
        schedule = found.client.best(workload, target)
    if as_json:
        print_json(asdict(schedule))
    else:
        where = f"{latency_text(schedule.latency_s)} on device class {schedule.device_class}"
        stdout().print(f"{where}\n{schedule.trace}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def export(
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Where the two files go.")],
    target: Annotated[str | None, typer.Option(help="The device class [native].")] = None,
    job: Annotated[str | None, typer.Option(metavar="JOB", help="Only this job's workloads.")] = None,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Write the schedules known as the two files of a MetaSchedule database."""
    from tunefarm.client import metaschedule_files

    prepared_output(output)
    with connect_or_start(load(server=server, token=token, data=data), say) as found:
        if job is None:
            wait_for_device(found, target)
        written = metaschedule_files.write(found.client.export(target=target, job_id=job), output)
    if as_json:
        print_json(asdict(written))
    else:
        stdout().print(f"{written.records} records of {written.workloads} workloads are in {output}")


@app.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A MetaSchedule database's folder.")],
    target: Target = "native",
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Add the records of a MetaSchedule database to the service's."""
    from tunefarm.client import metaschedule_files

    database = metaschedule_files.read(folder)
    with connect_or_start(load(server=server, token=token, data=data), say) as found:
        wait_for_device(found, target)
        imported = found.client.import_(database, target)
    if as_json:
        print_json(asdict(imported))
    else:
        stdout().print(f"{imported.added} of {imported.records} records are new on {imported.device_class}")


def main() -> NoReturn:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run(app, sys.argv[1:]))


if __name__ == "__main__":
    main()

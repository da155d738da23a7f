"""`tunefarm jobs`, `watch`, `cancel` and `delete`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from core.durations import latency_text
from core.exit_code import ExitCode
from core.job import JobState
from system.command import CommandError
from system.new_file import new_file
from tunefarm.cli.completion import job_ids
from tunefarm.cli.fitted import Column, FittedTable
from tunefarm.cli.follow import follow_job, require_done
from tunefarm.cli.live import IsLive, show_live
from tunefarm.cli.options import (
    AsJson,
    Data,
    JobId,
    Server,
    Token,
    connected,
    opened,
    print_json,
    print_plain,
    stdout,
)
from tunefarm.cli.progress import display, footprint_text, task_table
from tunefarm.cli.remarks import remarks
from tunefarm.client.values import Job

COLUMNS = (
    Column("job", rank=4, text=True),
    Column("model", text=True),
    Column("state", text=True),
    Column.number("trials", rank=1),
    Column.number("untuned", rank=3),
    Column.number("tuned"),
    Column.number("vs. ONNX Runtime", rank=2),
    Column("created", rank=5),
)


def jobs(
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="Show this job with its tasks.", autocompletion=job_ids),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    state: Annotated[JobState | None, typer.Option(help="Only jobs in this state.")] = None,
    search: Annotated[
        str, typer.Option(metavar="WORDS", help="Only jobs with these in their model's name, tags or notes.")
    ] = "",
    tag: Annotated[str | None, typer.Option(help="Only jobs with this tag.")] = None,
    live: IsLive = False,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, or show one."""
    is_filtered = state is not None or search or tag is not None
    empty = "no job matches" if is_filtered else "no job yet: start one with `tunefarm tune MODEL`"
    # Nothing changes in a folder without a running service.
    with (connected if live else opened)(server, token, data) as service:
        client = service.client
        job = None if job is None else client.job_id(job)

        def chosen() -> list[Job]:
            return list(islice(client.jobs(state=state, words=search, tag=tag), limit))

        if live and job is None:
            show_live(lambda: _table(found) if (found := chosen()) else Text(empty))
            return
        if live and job is not None:
            show_live(lambda: Group(_table([client.job(job)]), task_table(client.tasks(job))))
            return
        if job is None:
            listed, tasks = chosen(), None
        else:
            listed, tasks = [service.client.job(job)], service.client.tasks(job)
    if as_json:
        found = [asdict(one) for one in listed]
        print_json(found if tasks is None else found[0] | {"tasks": [asdict(task) for task in tasks]})
        return
    if not listed:
        print_plain(empty)
        return
    _table(listed).print(stdout())
    if tasks is not None:
        stdout().print(listed[0].error or listed[0].message, markup=False, highlight=False)
        if takes := footprint_text(listed[0].footprint):
            stdout().print(f"The artifact takes {takes}.", highlight=False)
        task_table(tasks).print(stdout())


def watch(
    job: JobId, server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Follow a job to its end."""
    with connected(server, token, data) as service, display(remarks(), silent=as_json) as shown:
        finished = follow_job(service, service.client.job_id(job), shown)
    if as_json:
        print_json(asdict(finished))
    else:
        _table([finished]).print(stdout())
        if finished.message:
            stdout().print(finished.message, highlight=False, markup=False, soft_wrap=True)
    require_done(finished)


def cancel(
    job: JobId, server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Cancel a job."""
    with opened(server, token, data) as service:
        cancelled = service.client.cancel(service.client.job_id(job))
    if as_json:
        print_json(asdict(cancelled))
    else:
        print_plain(f"job {cancelled.id} is cancelled")


def report(
    job: JobId,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write it (tunefarm-JOB.html).")
    ] = None,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Write a job's results as one HTML file to keep or to send."""
    with opened(server, token, data) as service:
        job = service.client.job_id(job)
        document = service.client.report(job)
    file = output or Path(f"tunefarm-{job}.html")
    try:
        with new_file(file) as written:
            written.write(document.encode())
    except OSError as error:
        cause = error.strerror or error
        raise CommandError(
            f"can't write {file} ({cause}): choose another --output", ExitCode.LOCAL
        ) from error
    if as_json:
        print_json({"report": str(file)})
    else:
        print_plain(str(file))


def delete(
    job: JobId, server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Delete a finished job and its artifact. What was measured for it stays."""
    with opened(server, token, data) as service:
        job = service.client.job_id(job)
        service.client.delete(job)
    if as_json:
        print_json({"deleted": job})
    else:
        print_plain(f"job {job} is deleted")


def _table(listed: Sequence[Job]) -> FittedTable:
    return FittedTable(COLUMNS, [_cells(job) for job in listed])


def _cells(job: Job) -> tuple[str, ...]:
    return (
        job.id,
        job.model_name,
        job.state,
        job.trials_text,
        latency_text(job.untuned_latency_s),
        latency_text(job.tuned_latency_s),
        job.onnxruntime_text,
        datetime.fromtimestamp(job.created_at).isoformat(" ", "seconds"),
    )

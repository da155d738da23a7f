"""`tunefarm best`, `export` and `import`: the schedules that a service knows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from core.durations import latency_text
from tunefarm.cli.options import (
    AsJson,
    Data,
    Server,
    Target,
    Token,
    prepared_output,
    print_json,
    print_plain,
    say,
    stdout,
)
from tunefarm.embedded.service import connect_or_start, wait_for_device
from tunefarm.settings import load


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
    with connect_or_start(load(server=server, token=token, data=data), say) as service:
        wait_for_device(service, target)
        schedule = service.client.best(workload, target)
    if as_json:
        print_json(asdict(schedule))
    else:
        latency = latency_text(schedule.latency_s)
        print_plain(f"{latency} on device class {schedule.device_class}\n{schedule.trace}")


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
    with connect_or_start(load(server=server, token=token, data=data), say) as service:
        if job is None:
            wait_for_device(service, target)
        counts = metaschedule_files.write(service.client.export(target=target, job_id=job), output)
    if as_json:
        print_json(asdict(counts))
    else:
        stdout().print(f"{counts.records} records of {counts.workloads} workloads are in {output}")


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
    with connect_or_start(load(server=server, token=token, data=data), say) as service:
        wait_for_device(service, target)
        result = service.client.import_(database, target)
    if as_json:
        print_json(asdict(result))
    else:
        stdout().print(f"{result.added} of {result.records} records are new on {result.device_class}")

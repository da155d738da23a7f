"""`tunefarm best`, `export`, `import` and `delete-imported`: the schedules that a service knows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from core.durations import latency_text
from core.measurement import NOISY
from tunefarm.cli.device_classes import name_of, named_classes
from tunefarm.cli.options import (
    AsJson,
    Data,
    Server,
    Target,
    Token,
    opened,
    prepared_output,
    print_json,
    print_plain,
)
from tunefarm.cli.remarks import say
from tunefarm.embedded.service import NATIVE, connect_or_start, wait_for_device
from tunefarm.settings import load


def best(
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD", help="A workload's hash, see `jobs JOB --json`, or the start of it."
        ),
    ],
    target: Target = "native",
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show the best schedule known of a workload."""
    with opened(server, token, data) as service:
        wanted = service.known_target(target)
        schedule = service.client.best(service.client.workload_hash(workload), wanted)
        device = name_of(named_classes(service.client), schedule.device_class)
    if as_json:
        print_json(asdict(schedule))
    else:
        latency = latency_text(schedule.latency_s)
        if schedule.source == "import":
            latency = f"imported, not measured here; its database reports {latency}"
        print_plain(f"{latency} on {device}\n{schedule.trace}")


def show(
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD", help="A workload's hash, see `jobs JOB --json`, or the start of it."
        ),
    ],
    target: Target = "native",
    naive: Annotated[bool, typer.Option("--naive", help="The program before it is scheduled.")] = False,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Print the best program of a workload as loops, in TVMScript."""
    from tunefarm.client.metaschedule_files import load_compiler

    with opened(server, token, data) as service:
        workload = service.client.workload_hash(workload)
        module_json = service.client.workload(workload)
        schedule, device = None, ""
        if not naive:
            schedule = service.client.best(workload, service.known_target(target))
            device = name_of(named_classes(service.client), schedule.device_class)
    workloads = load_compiler("compiler.workload")
    module = workloads.from_json(module_json)
    if schedule is not None:
        module = load_compiler("compiler.lowering.trace").apply_trace(module, schedule.trace)
    if as_json:
        found = None if schedule is None else asdict(schedule)
        print_json({"workload": workload, "schedule": found, "tvmscript": workloads.tvmscript(module)})
        return
    if schedule is None:
        print_plain("# as imported, before it is scheduled")
    else:
        noise = "" if schedule.noise is None else f", varying by {schedule.noise:.0%}"
        if schedule.noise is not None and schedule.noise > NOISY:
            noise += " (noisy: the device was disturbed)"
        took = f"{latency_text(schedule.latency_s)}{noise}"
        claimed = " by its database's report, not measured here" if schedule.source == "import" else ""
        print_plain(f"# {took}{claimed} on {device}")
    print_plain(workloads.tvmscript(module))


def export(
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Where the two files go.")],
    target: Annotated[str | None, typer.Option(help="The device class [native].")] = None,
    job: Annotated[str | None, typer.Option(metavar="JOB", help="Only this job's workloads.")] = None,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Write measured schedules as a MetaSchedule database.

    It has two files.
    """
    from tunefarm.client import metaschedule_files

    prepared_output(output)
    with opened(server, token, data) as service:
        if job is None:
            target = service.known_target(target or NATIVE)
        else:
            job = service.client.job_id(job)
        counts = metaschedule_files.write(service.client.export(target=target, job_id=job), output)
    if as_json:
        print_json(asdict(counts))
    else:
        print_plain(f"{counts.records} records of {counts.workloads} workloads are in {output}")


def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A MetaSchedule database's folder.")],
    target: Target = "native",
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Add the records of a MetaSchedule database to the service.

    Jobs measure them before they count.
    """
    from tunefarm.client import metaschedule_files

    database = metaschedule_files.read(folder)
    with connect_or_start(load(server=server, token=token, data=data), say) as service:
        wait_for_device(service, target)
        result = service.client.import_(database, target)
        device = name_of(named_classes(service.client), result.device_class)
    if as_json:
        print_json(asdict(result))
    else:
        print_plain(f"{result.added} of {result.records} records are new on {device}")


def delete_imported(
    target: Target = "native",
    workload: Annotated[
        str | None, typer.Option(metavar="WORKLOAD", help="Only schedules of this workload.")
    ] = None,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Delete the imported schedules that no device has measured yet."""
    with opened(server, token, data) as service:
        result = service.client.delete_imported(service.known_target(target), workload)
        device = name_of(named_classes(service.client), result.device_class)
    if as_json:
        print_json(asdict(result))
    else:
        print_plain(f"{result.deleted} imported records are deleted on {device}")

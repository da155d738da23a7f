"""`tunefarm release`: names, such as `production`, that point to artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from core.durations import latency_text
from tunefarm.cli.compiled import fetch_artifact
from tunefarm.cli.device_classes import NamedClass, name_of, named_classes
from tunefarm.cli.fitted import Column
from tunefarm.cli.options import (
    AsJson,
    Data,
    JobId,
    Server,
    Target,
    Token,
    opened,
    prepared_output,
    print_fields,
    print_list,
    print_one,
    time_text,
)
from tunefarm.client.values import Release

app = typer.Typer(help="Name artifacts, such as `production`, and fetch them.", rich_markup_mode=None)

COLUMNS = (
    Column("name", text=True),
    Column("device", text=True),
    Column("model", text=True),
    Column.number("version", rank=1),
    Column.number("latency"),
    Column("job", rank=2, text=True),
    Column("since", rank=3),
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, dots, dashes, underscores.")]


@app.command("set")
def set_(
    name: Name,
    job: JobId,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Let a name point to a job's artifact, on its device class."""
    with opened(server, token, data) as service:
        release = service.client.release(name, service.client.job_id(job))
        device = name_of(named_classes(service.client), release.device_class)
    version = f"version {release.version} of {release.model_name} on {device}"
    print_one(release, as_json, f"{release.name} is {version}")


@app.command("list")
def list_(server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False) -> None:
    """List the names and their artifacts."""
    with opened(server, token, data) as service:
        found, classes = service.client.releases(), named_classes(service.client)
    empty = "no artifact has a name yet: give one with `tunefarm release set NAME JOB`"
    print_list(found, as_json, COLUMNS, partial(_row, classes), empty=empty)


@app.command()
def fetch(
    name: Name,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Where the compiled model goes.")],
    target: Target = "native",
    bundle: Annotated[bool, typer.Option("--bundle", help="Also what C and C++ programs need.")] = False,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Fetch the compiled model that a name points to."""
    folder = prepared_output(output)
    with opened(server, token, data) as service:
        download = partial(service.client.download_release, name, target=target, bundle=bundle)
        fetch_artifact(folder, download, bundle=bundle)
    print_fields({"name": name, "artifact": str(folder)}, as_json, f"artifact  {folder}")


@app.command()
def delete(
    name: Name,
    target: Target = "native",
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Delete a name on a device class. The artifact stays."""
    with opened(server, token, data) as service:
        service.client.delete_release(name, target)
    print_fields({"name": name, "deleted": True}, as_json, f"{name} is deleted")


@app.command()
def key(server: Server = None, token: Token = None, data: Data = None, as_json: AsJson = False) -> None:
    """Print the public key that the service signs artifacts with."""
    with opened(server, token, data) as service:
        found = service.client.signing_key()
    print_fields({"key": found}, as_json, found)


def _row(classes: Mapping[str, NamedClass], one: Release) -> tuple[str, ...]:
    device = name_of(classes, one.device_class)
    version, latency, since = str(one.version), latency_text(one.latency_s), time_text(one.set_at)
    return one.name, device, one.model_name, version, latency, one.job, since

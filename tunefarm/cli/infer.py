"""`tunefarm infer`: run an artifact on a device with your own inputs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from core.exit_code import ExitCode
from system.command import CommandError
from tunefarm.cli.completion import job_ids
from tunefarm.cli.device_classes import name_of, named_classes
from tunefarm.cli.follow import follow_job, require_done
from tunefarm.cli.options import AsJson, Data, Server, Token, checked_npz, print_json, print_plain, stdout
from tunefarm.cli.progress import display
from tunefarm.cli.remarks import remarks
from tunefarm.client.client import Client
from tunefarm.client.values import Inference, Job
from tunefarm.embedded.service import connect_or_start
from tunefarm.errors import InputError
from tunefarm.settings import load


def infer(
    artifact: Annotated[
        str,
        typer.Argument(
            metavar="JOB",
            help="A job's id, its first characters, or a release's name.",
            autocompletion=job_ids,
        ),
    ],
    inputs: Annotated[
        Path,
        typer.Option(
            "--inputs", metavar="FILE.npz", help="An array for each input of the model, by its name."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.npz", help="The file to write the outputs to.")],
    device: Annotated[
        str | None, typer.Option("--device", metavar="CLASS", help="A device class [the artifact's].")
    ] = None,
    server: Server = None,
    token: Token = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Run an artifact on a device with your own inputs.

    The outputs are compared with ONNX Runtime's outputs for the original model.
    """
    checked_npz(inputs)
    settings = load(server=server, token=token, data=data)
    console = remarks()
    with connect_or_start(settings, console.print) as service:
        client = service.client
        try:
            dataset = client.upload_dataset(inputs).sha256
        except OSError as error:
            raise InputError(f"{inputs} can't be read ({error.strerror})") from error
        started = client.infer(_job_of(client, artifact), dataset, device)
        with display(console, silent=as_json) as shown:
            job = follow_job(service, started.id, shown)
        require_done(job)
        try:
            client.download_outputs(job.id, out)
        except OSError as error:
            raise CommandError(f"{out} can't be written ({error.strerror})", ExitCode.LOCAL) from error
        _print(job, client.inference(job.id), out, as_json)


def _job_of(client: Client, artifact: str) -> str:
    """Return the id of the job that a release's name or the start of an id refers to. Raises CommandError."""
    named = [release for release in client.releases() if release.name == artifact]
    if len(named) > 1:
        classes = named_classes(client)
        listed = ", ".join(f"{one.job} on {name_of(classes, one.device_class)}" for one in named)
        raise CommandError(
            f"the release {artifact} exists for several devices ({listed}): give a job's id", ExitCode.USAGE
        )
    return named[0].job if named else client.job_id(artifact)


def _print(job: Job, found: Inference, out: Path, as_json: bool) -> None:
    if as_json:
        print_json({"job": asdict(job), "inference": asdict(found), "outputs": str(out)})
        return
    if found.comparison is not None and found.comparison.outputs:
        table = Table("output", "elements", "differing", "largest difference", "dB", box=None, pad_edge=False)
        for one in found.comparison.outputs:
            largest = "NaN or infinite" if one.largest is None else f"{one.largest:.3g}"
            ratio = "exact" if one.db is None else f"{one.db:.1f}"
            table.add_row(escape(one.name), str(one.elements), str(one.differing), largest, ratio)
        stdout().print(table)
    print_plain(f"{job.message}; the outputs are in {out}")

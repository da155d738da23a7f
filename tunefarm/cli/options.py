"""What the commands share: their options, finding the service, and printing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tunefarm.embedded.service import Service, connect
from tunefarm.settings import load

Server = Annotated[str | None, typer.Option("--server", metavar="URL", help="A running service.")]
Token = Annotated[str | None, typer.Option("--token", help="The service's token.")]
Data = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="The embedded service's folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Target = Annotated[str, typer.Option(help="A device class, or `native`: whatever device is ready.")]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL.onnx")]
Shape = Annotated[
    list[str] | None, typer.Option("--shape", metavar="NAME=1,3,224,224", help="A dynamic input's shape.")
]
Output = Annotated[
    Path | None, typer.Option("--output", metavar="DIR", help="Where the compiled model goes [MODEL-tuned].")
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads the local worker measures with [every core].")
]
Features = Annotated[
    str | None,
    typer.Option(
        metavar="-NAME,...",
        help="Instruction sets that the worker started here does without, such as -avx512f or -avx.",
    ),
]
JobId = Annotated[str, typer.Argument(metavar="JOB")]


@contextmanager
def running(server: str | None, token: str | None, data: Path | None) -> Iterator[Service]:
    """The service that is running already. Raises what `connect` and `load` do."""
    with connect(load(server=server, token=token, data=data)) as found:
        yield found


def stdout() -> Console:
    """Wide where nobody looks, so that a program reads whole lines."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def say(line: str) -> None:
    """To the person at the terminal; standard output is for results."""
    print(line, file=sys.stderr)

"""Options of several commands, checks of their values, and the output of commands."""

from __future__ import annotations

import json
import math
import os
import platform
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from core.exit_code import ExitCode
from core.instruction_sets import FeatureError, disabled_features
from system.command import CommandError
from tunefarm.cli.completion import job_ids
from tunefarm.cli.fitted import Column, FittedTable
from tunefarm.cli.remarks import say
from tunefarm.embedded.service import Service, connect, connect_or_open
from tunefarm.errors import InputError
from tunefarm.settings import load

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = TypeVar("Value", bound="DataclassInstance")

Server = Annotated[str | None, typer.Option("--server", metavar="URL", help="A running service.")]
Token = Annotated[str | None, typer.Option("--token", help="The service's token.")]
Data = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="The embedded service's folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Target = Annotated[str, typer.Option(help="A device class, or `native` for any device that is ready.")]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL")]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=1,3,224,224",
        help="The shape of a dynamic input, or the sizes of a named dimension: tokens=32,128.",
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", metavar="DIR", help="Where the compiled model goes [MODEL-tuned].")
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads of the local worker's measurements [every core].")
]
Features = Annotated[
    str | None,
    typer.Option(
        metavar="-NAME,...",
        help="Instruction sets that the local worker gives up, such as -avx512f or -avx.",
    ),
]
JobId = Annotated[
    str, typer.Argument(metavar="JOB", help="A job's id, or the start of it.", autocompletion=job_ids)
]


def checked_model(path: Path) -> Path:
    """Return the path if it is a readable file that isn't empty. Raises InputError otherwise."""
    if not path.exists():
        raise InputError(f"there is no file {path}: check the path")
    if path.is_dir():
        raise InputError(f"{path} is a folder: name the model's file in it")
    if not path.is_file():
        raise InputError(f"{path} is no regular file: write the model to a file")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise InputError(f"{path} can't be read ({error.strerror}): check its permissions") from error
    if empty:
        raise InputError(f"{path} is empty: export the model again")
    return path


def checked_npz(path: Path) -> Path:
    """Return the path if it is an .npz file. Raises InputError otherwise."""
    if not path.exists():
        raise InputError(f"there is no file {path}: check the path")
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is no .npz file: write one with numpy.savez, an array for each input")
    return path


def parsed_shapes(flags: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return shapes by input, or sizes by dimension, from flags like `NAME=1,3,224,224`. Raises
    CommandError."""
    shapes: dict[str, tuple[int, ...]] = {}
    for flag in flags:
        name, equals, extents = flag.rpartition("=")
        try:
            shape = tuple(int(extent) for extent in extents.split(","))
        except ValueError:
            shape = ()
        if not (name and equals and shape and all(extent > 0 for extent in shape)):
            raise CommandError(
                f"--shape {flag!r} is not understood: write NAME=1,3,224,224, all numbers above 0",
                ExitCode.USAGE,
            )
        if name in shapes:
            raise CommandError(f"--shape is given twice for {name!r}: keep one", ExitCode.USAGE)
        shapes[name] = shape
    return shapes


def checked_minutes(minutes: float | None) -> float | None:
    """Return the minutes if they are positive and finite, or None. Raises CommandError."""
    if minutes is not None and not 0 < minutes < math.inf:
        raise CommandError(f"--minutes must be more than 0, not {minutes:g}", ExitCode.USAGE)
    return minutes


def checked_features(features: str | None) -> str | None:
    """Return the flag's value if it names instruction sets of this kind of machine. Raises CommandError."""
    try:
        disabled_features(features or "", platform.machine())
    except FeatureError as error:
        raise CommandError(f"--features is wrong: {error}, not {features!r}", ExitCode.USAGE) from error
    return features


def prepared_output(path: Path) -> Path:
    """Create the folder if necessary, and return it. Raises CommandError if it can't be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(None, "permission denied")
    except OSError as error:
        raise CommandError(
            f"the output folder {path} can't be written ({error.strerror}): "
            "choose another one with --output DIR",
            ExitCode.LOCAL,
        ) from error
    return path


@contextmanager
def connected(server: str | None, token: str | None, data: Path | None) -> Iterator[Service]:
    """Connect to the running service. Raises CommandError and SettingsError."""
    with connect(load(server=server, token=token, data=data)) as service:
        yield service


@contextmanager
def opened(server: str | None, token: str | None, data: Path | None) -> Iterator[Service]:
    """Connect to the running service or open the data folder. Raises CommandError and SettingsError."""
    with connect_or_open(load(server=server, token=token, data=data)) as service:
        yield service


def stdout() -> Console:
    """Return a console for standard output. Unless it is a terminal, it is wide, so that programs read whole
    lines."""
    console = Console(emoji=False)
    return console if console.is_terminal else Console(width=160, emoji=False)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def print_list(
    found: Sequence[Value],
    as_json: bool,
    columns: Sequence[Column],
    row: Callable[[Value], Sequence[str]],
    *,
    empty: str,
) -> None:
    """Print dataclasses as JSON, or as a table with a row for each; the line `empty` if there are none."""
    if as_json:
        print_json([asdict(one) for one in found])
        return
    if not found:
        print_plain(empty)
        return
    FittedTable(columns, [row(one) for one in found]).print(stdout())


def print_one(found: DataclassInstance, as_json: bool, line: str) -> None:
    """Print a dataclass as JSON, or a line about it."""
    print_fields(asdict(found), as_json, line)


def print_fields(found: Mapping[str, Any], as_json: bool, line: str) -> None:
    """Print fields as JSON, or a line about them."""
    if as_json:
        print_json(found)
    else:
        print_plain(line)


def print_secret(made: DataclassInstance, as_json: bool, secret: str, line: str) -> None:
    """Print a new object as JSON, or its secret, below a line about it on standard error."""
    if as_json:
        print_json(asdict(made))
        return
    say(f"{line}; copy it now, it isn't shown again:")
    print(secret)


def print_plain(line: str) -> None:
    """Print text unchanged, without rich's markup, highlighting and line breaks."""
    stdout().print(line, markup=False, highlight=False, soft_wrap=True)


def time_text(at: float) -> str:
    """Return a time, in epoch seconds, to the minute in the local time zone."""
    return datetime.fromtimestamp(at).isoformat(" ", "minutes")

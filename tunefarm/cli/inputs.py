"""Checks what a person hands in, before anything is started for it."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable
from pathlib import Path

from core.exit_code import ExitCode
from core.instruction_sets import FeatureError, disabled_features
from system.command import CommandError
from tunefarm.errors import InputError


def checked_model(path: Path) -> Path:
    """Raises InputError unless the path is a file with something in it that can be read."""
    if not path.exists():
        raise InputError(f"there is no file {path}: check the path")
    if path.is_dir():
        raise InputError(f"{path} is a folder: name the ONNX file in it")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise InputError(f"{path} can't be read ({error.strerror}): check its permissions") from error
    if empty:
        raise InputError(f"{path} is empty: export the model again")
    return path


def parsed_shapes(flags: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """`NAME=1,3,224,224` for every flag. Raises CommandError for anything else."""
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
            raise CommandError(f"--shape is given twice for input {name!r}: keep one", ExitCode.USAGE)
        shapes[name] = shape
    return shapes


def checked_minutes(minutes: float | None) -> float | None:
    """Raises CommandError unless the budget is a positive number of minutes or none at all."""
    if minutes is not None and not 0 < minutes < math.inf:
        raise CommandError(f"--minutes must be more than 0, not {minutes:g}", ExitCode.USAGE)
    return minutes


def checked_weight(weight: float) -> float:
    """Raises CommandError unless it is a weight that a job may have."""
    if not 0.001 <= weight <= 1000:
        raise CommandError(f"--weight must be between 0.001 and 1000, not {weight:g}", ExitCode.USAGE)
    return weight


def checked_features(features: str | None) -> str | None:
    """Raises CommandError unless these are instruction sets that a worker on this machine might give up."""
    try:
        disabled_features(features or "", platform.machine())
    except FeatureError as error:
        raise CommandError(f"--features is wrong: {error}, not {features!r}", ExitCode.USAGE) from error
    return features


def prepared_output(path: Path) -> Path:
    """The folder, made if need be. Raises CommandError when files can't be written to it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error.strerror) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise _unwritable(path, "permission denied")
    return path


def _unwritable(path: Path, cause: str | None) -> CommandError:
    return CommandError(
        f"the output folder {path} can't be written ({cause}): choose another one with --output DIR",
        ExitCode.LOCAL,
    )

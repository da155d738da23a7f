"""Unpacks what a job made: a tar file with a shared library and its manifest."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from core.exit_code import ExitCode
from system.command import CommandError

MEMBERS = ("model.so", "manifest.json")


def unpack(archive: Path, folder: Path) -> None:
    """Writes the members that an artifact has into a folder. Nothing else in the archive is looked at.

    Raises CommandError when one is missing or can't be written.
    """
    try:
        with tarfile.open(archive) as tar:
            for name in MEMBERS:
                _extract(tar, name, folder / name)
    except (tarfile.TarError, KeyError) as error:
        raise CommandError(
            f"the service sent a damaged artifact ({error}): fetch it again", ExitCode.REFUSED
        ) from error
    except OSError as error:
        raise CommandError(
            f"the artifact can't be written to {folder} ({error.strerror})", ExitCode.LOCAL
        ) from error


def _extract(tar: tarfile.TarFile, name: str, path: Path) -> None:
    stream = tar.extractfile(name)
    if stream is None:
        raise KeyError(f"{name} is not a regular file")
    fresh = path.with_name(f".{path.name}.new")
    with stream, fresh.open("wb") as file:
        shutil.copyfileobj(stream, file)
    fresh.replace(path)  # a library that is in use keeps its pages

"""Unpacks a job's artifact: a tar file with a shared library and its manifest."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from core.exit_code import ExitCode
from system.command import CommandError

MEMBERS = ("model.so", "manifest.json")


def unpack(archive: Path, folder: Path) -> None:
    """Write `model.so` and `manifest.json` into a folder; ignore whatever else the archive holds.

    Raises CommandError when a member is missing or can't be written.
    """
    try:
        with tarfile.open(archive) as tar:
            for name in MEMBERS:
                stream = tar.extractfile(name)
                if stream is None:
                    raise KeyError(f"{name} is not a regular file")
                fresh = folder / f".{name}.new"
                with stream, fresh.open("wb") as file:
                    shutil.copyfileobj(stream, file)
                fresh.replace(folder / name)  # processes that use the old library keep its pages
    except (tarfile.TarError, KeyError) as error:
        raise CommandError(
            f"the service sent a damaged artifact ({error}): fetch it again", ExitCode.REFUSED
        ) from error
    except OSError as error:
        raise CommandError(
            f"the artifact can't be written to {folder} ({error.strerror})", ExitCode.LOCAL
        ) from error

"""Unpack a job's artifact, a tar file with a shared library and its manifest, or its bundle."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Any

import msgspec

from core.exit_code import ExitCode
from core.library_weights import set_apart
from system.command import CommandError
from tunefarm.client.values import PublishedTask

_MANIFEST = "manifest.json"
MEMBERS = ("model.so", _MANIFEST)
# The quantized model, which commands write beside the compiled model.
QUANTIZED = "quantized.onnx"
SIGNATURE = "manifest.sig"
# The signed list of a bundle's files.
_BUNDLE_LIST = ("bundle.json", "bundle.sig")


def unpack(archive: Path, folder: Path, *, bundle: bool = False, weights: Path | None = None) -> None:
    """Write `model.so`, `manifest.json` and its signature into a folder, and the rest for a `bundle` only.

    The large weights of one of several sizes go into the folder `weights`, which all sizes share.

    Raises CommandError if a member is missing, is outside of the folder or can't be written.
    """
    try:
        with tarfile.open(archive, "r:") as tar:
            others = [
                name for name in tar.getnames() if name not in MEMBERS and (bundle or name == SIGNATURE)
            ]
            for name in {SIGNATURE, *_BUNDLE_LIST}.difference(others):  # from an earlier download
                (folder / name).unlink(missing_ok=True)
            for name in (*MEMBERS, *others):
                stream = tar.extractfile(name)
                if stream is None:
                    raise KeyError(f"{name} is not a regular file")
                target = folder / name
                if not target.resolve().is_relative_to(folder.resolve()):
                    raise KeyError(f"{name} leads out of the folder")
                if target.parent != folder:
                    target.parent.mkdir(parents=True, exist_ok=True)
                fresh = target.with_name(f".{target.name}.new")
                with stream, fresh.open("wb") as file:
                    shutil.copyfileobj(stream, file)
                if weights is not None and name == MEMBERS[0]:
                    set_apart(fresh, weights)
                fresh.replace(target)  # processes that use the old library keep its pages mapped
    except (
        tarfile.TarError,
        KeyError,
        ValueError,
    ) as error:  # a name with a null byte, damaged weights
        raise _damaged(error) from error
    except OSError as error:
        raise CommandError(
            f"the artifact can't be written to {folder} ({error.strerror})", ExitCode.LOCAL
        ) from error


def published_tasks(archive: Path) -> list[PublishedTask]:
    """Return the subgraphs that an artifact's manifest lists. Raises CommandError for a damaged one."""
    try:
        with tarfile.open(archive, "r:") as tar:
            stream = tar.extractfile(_MANIFEST)
            if stream is None:
                raise KeyError(f"{_MANIFEST} is not a regular file")
            with stream:
                manifest: Any = msgspec.json.decode(stream.read())
        return msgspec.convert(manifest["tasks"], list[PublishedTask])
    except (tarfile.TarError, KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> CommandError:
    return CommandError(f"the service sent a damaged artifact ({error}): fetch it again", ExitCode.REFUSED)

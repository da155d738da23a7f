"""Unpack a job's artifact, a tar file with a shared library and its manifest, or its bundle."""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from core.archive_outline import check_plain_tar
from core.exit_code import ExitCode
from core.library_weights import set_apart
from system.command import CommandError
from tunefarm.client.values import PublishedTask

_MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 16 << 20
MEMBERS = (_MANIFEST, "model.so")
# The quantized model, which commands write beside the compiled model.
QUANTIZED = "quantized.onnx"
SIGNATURE = "manifest.sig"
# The signed list of a bundle's files.
_BUNDLE_LIST = ("bundle.json", "bundle.sig")
# What a bundle may write into the user's folder. Nothing is hidden or leads elsewhere.
_BUNDLE_FILE = re.compile(
    r"bundle\.(json|sig)|model\.txt|main\.c|CMakeLists\.txt|tunefarm\.(c|h|hpp)"
    r"|(lib|include|licenses)(/[A-Za-z0-9_+-][A-Za-z0-9_+.-]*)+"
)


def unpack(archive: Path, folder: Path, *, bundle: bool = False, weights: Path | None = None) -> None:
    """Write `model.so`, `manifest.json` and its signature into a folder, and the rest for a `bundle` only.

    The large weights of one of several sizes go into the folder `weights`, which all sizes share. The
    manifest comes last: without it, no program loads a folder that is half written.

    Raises CommandError if a member is missing, isn't a bundle's or can't be written.
    """
    try:
        with _opened(archive) as tar, TemporaryDirectory(prefix=".", dir=folder) as new:
            others = [name for name in tar.getnames() if bundle or name == SIGNATURE]
            fresh: dict[str, Path] = {}
            for number, name in enumerate(dict.fromkeys((*MEMBERS, *others))):
                fresh[name] = Path(new, str(number))
                _extract(tar, name, folder, fresh[name])
            if weights is not None:
                set_apart(fresh["model.so"], weights)
            _replace(folder, fresh)
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


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive that has only plain files. Raises ValueError, tarfile.TarError, OSError."""
    with archive.open("rb") as file:
        check_plain_tar(file)
        with tarfile.open(fileobj=file, mode="r:") as tar:
            yield tar


def _extract(tar: tarfile.TarFile, name: str, folder: Path, fresh: Path) -> None:
    """Write a member that goes to `folder / name` to the file `fresh`. Raises KeyError, OSError."""
    if name not in (*MEMBERS, SIGNATURE) and not _BUNDLE_FILE.fullmatch(name):
        raise KeyError(f"{name} is no file of a bundle")
    if not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise KeyError(f"{name} leads out of the folder")
    stream = tar.extractfile(name)
    if stream is None:
        raise KeyError(f"{name} is not a regular file")
    with stream, fresh.open("wb") as file:
        shutil.copyfileobj(stream, file)


def _replace(folder: Path, fresh: dict[str, Path]) -> None:
    """Replace the files of a folder, and delete files of an earlier download. Raises OSError."""
    manifest = folder / _MANIFEST
    stale = {SIGNATURE, *_BUNDLE_LIST}.difference(fresh)
    if _is_quantized(manifest):
        stale.add(QUANTIZED)
    for name in (_MANIFEST, *stale):
        (folder / name).unlink(missing_ok=True)
    for name, file in reversed(fresh.items()):  # processes that use the old library keep its pages
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)


def _is_quantized(manifest: Path) -> bool:
    """Return whether the service quantized the model of a manifest, so that QUANTIZED beside it is ours."""
    try:
        return bool(msgspec.json.decode(manifest.read_bytes())["quantization"])
    except (OSError, LookupError, TypeError, msgspec.MsgspecError):
        return False


def published_tasks(archive: Path) -> list[PublishedTask]:
    """Return the subgraphs that an artifact's manifest lists. Raises CommandError for a damaged one."""
    try:
        with _opened(archive) as tar:
            stream = tar.extractfile(_MANIFEST)
            if stream is None:
                raise KeyError(f"{_MANIFEST} is not a regular file")
            with stream:
                manifest: Any = msgspec.json.decode(stream.read(_MAX_MANIFEST_BYTES))
        return msgspec.convert(manifest["tasks"], list[PublishedTask])
    except (tarfile.TarError, KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> CommandError:
    return CommandError(f"the service sent a damaged artifact ({error}): fetch it again", ExitCode.REFUSED)

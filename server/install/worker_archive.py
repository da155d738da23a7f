"""The archive that the install script uses: wheels of tunefarm and tunefarm-runtime, pinned versions, and a
systemd unit."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

_FOLDER = Path(__file__).parent
# The wheel of tunefarm-runtime is pure Python here, because it uses the libraries of the worker's TVM.
_RUNTIME_LIBRARIES = "tunefarm_runtime/lib/"
_WHEEL = "Wheel-Version: 1.0\nGenerator: tunefarm\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@cache
def worker_archive() -> bytes:
    """Return the archive. Raises PackageNotFoundError if tunefarm isn't installed as a package."""
    files = dict([wheel_of("tunefarm")])
    with suppress(PackageNotFoundError):
        files |= [wheel_of("tunefarm-runtime")]
    for name in ("constraints.txt", "tunefarm-worker.service"):
        files[name] = (_FOLDER / name).read_bytes()
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for file, data in files.items():
            entry = tarfile.TarInfo(file)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return made.getvalue()


def wheel_of(name: str) -> tuple[str, bytes]:
    """Return the file name and the content of a wheel of one of our distributions as installed here.

    Works for installations from a wheel and from a checkout. Raises PackageNotFoundError.
    """
    installed = distribution(name)
    stem = f"{name.replace('-', '_')}-{installed.version}"
    files = _package_files(installed)
    files[f"{stem}.dist-info/WHEEL"] = _WHEEL.encode()
    # In a checkout, setuptools writes the metadata to PKG-INFO.
    metadata = installed.read_text("METADATA") or installed.read_text("PKG-INFO") or ""
    files[f"{stem}.dist-info/METADATA"] = metadata.encode()
    for entry in ("entry_points.txt", "top_level.txt"):
        files[f"{stem}.dist-info/{entry}"] = (installed.read_text(entry) or "").encode()
    record = f"{stem}.dist-info/RECORD"
    files[record] = _record(files, record)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            # A fixed time, so that equal files make equal wheels.
            archive.writestr(zipfile.ZipInfo(path), data, zipfile.ZIP_DEFLATED)
    return f"{stem}-py3-none-any.whl", made.getvalue()


def _package_files(installed: Distribution) -> dict[str, bytes]:
    """Return the files of all packages, by their paths in a wheel."""
    files = {}
    for package in sorted((installed.read_text("top_level.txt") or "").split()):
        spec = find_spec(package)
        assert spec is not None, f"{package} is installed"
        assert spec.origin is not None, f"{package} is a regular package"
        root = Path(spec.origin).parent
        for file in sorted(path for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc"):
            path = f"{package}/{file.relative_to(root)}"
            if not path.startswith(_RUNTIME_LIBRARIES):
                files[path] = file.read_bytes()
    return files


def _record(files: Mapping[str, bytes], own: str) -> bytes:
    """Return a wheel's RECORD: its files with their digests."""
    made = io.StringIO()
    lines = csv.writer(made, lineterminator="\n")
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.writerow((path, f"sha256={digest}", len(data)))
    lines.writerow((own, "", ""))
    return made.getvalue().encode()

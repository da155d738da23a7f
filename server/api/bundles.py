"""Bundles: compiled models with the libraries and sources with which C and C++ programs run them."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

from records.jobs.jobs import Job
from records.storage import blobs
from server.context import ServerContext
from server.problems import Problem

_TAR_HEADER_BYTES = 512


@dataclass(frozen=True)
class Bundle:
    """A bundle as a tar file: `beginning`, then the artifact, which is a tar file itself.

    `sha256` is the digest of both together.
    """

    beginning: bytes
    sha256: bytes


def repr_digest(sha256: bytes) -> str:
    """Return the Repr-Digest header of RFC 9530 for a SHA-256."""
    return f"sha-256=:{base64.b64encode(sha256).decode()}:"


def bundle_of(context: ServerContext, job: Job) -> Bundle:
    """Return the bundle of a job's artifact. Raises Problem if none can be made, BlobNotFound."""
    assert job.artifact_sha is not None, "the job has published"
    if importlib.util.find_spec("tunefarm_runtime") is None:
        detail = "This service lacks the package tunefarm-runtime: install it beside the server, or call "
        raise Problem(409, "no-bundle", detail + "`tunefarm bundle` where it is installed.")
    # Imported here, because it loads NumPy and a library of TVM's, which most servers never need.
    from tunefarm_runtime.bundle import DESCRIPTION, companions, describe
    from tunefarm_runtime.errors import LoadError
    from tunefarm_runtime.manifest import Manifest
    from tunefarm_runtime.signature import BUNDLE, BUNDLE_SIGNATURE, list_files

    try:
        text = manifest_text(context, job.artifact_sha)
        manifest = Manifest.parse(text, Path(f"job {job.id}"))
        files = {name: source.read_bytes() for name, source in companions(manifest).items()}
    except (LoadError, tarfile.TarError) as error:
        raise Problem(409, "no-bundle", f"The artifact can't be bundled: {error}.") from error
    files[DESCRIPTION] = describe(manifest)
    if context.signing_key is not None:
        listed = list_files(files, text)
        files |= {BUNDLE: listed, BUNDLE_SIGNATURE: context.signing_key.sign_bundle(listed).encode()}
    beginning = _tar_beginning(files)
    digest = context.bundle_digests.get(job.artifact_sha)
    if digest is None:
        digest = _digest(context, beginning, job.artifact_sha)
        context.bundle_digests[job.artifact_sha] = digest
    return Bundle(beginning, digest)


def manifest_text(context: ServerContext, sha: str) -> bytes:
    """Return the manifest of an artifact, which is its first entry."""
    data, position, end = b"", 0, _TAR_HEADER_BYTES
    while len(data) < end:
        with context.database.reading() as session:
            data += blobs.chunk(session, sha, position)
        position += 1
        end = _TAR_HEADER_BYTES + tarfile.TarInfo.frombuf(data[:_TAR_HEADER_BYTES], "utf-8", "strict").size
    return data[_TAR_HEADER_BYTES:end]


def _tar_beginning(files: dict[str, bytes]) -> bytes:
    """Return a tar file without its end blocks, so that another tar file may follow."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
        end = tar.offset
    return buffer.getvalue()[:end]


def _digest(context: ServerContext, beginning: bytes, sha: str) -> bytes:
    digest, position, left = hashlib.sha256(beginning), 0, 0
    with context.database.reading() as session:
        left = blobs.size(session, sha) or 0
    while left > 0:
        with context.database.reading() as session:
            data = blobs.chunk(session, sha, position)
        digest.update(data)
        position, left = position + 1, left - len(data)
    return digest.digest()

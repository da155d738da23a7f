"""Artifacts that tests of a server publish."""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from typing import Any

from compiler.packaging import archive
from core.job import UNFINISHED, JobState
from records.jobs import jobs
from records.storage import blobs
from system.signing import SigningKey

from .conftest import Service, Worker


def repr_digest(content: bytes) -> str:
    return f"sha-256=:{base64.b64encode(sha256(content).digest()).decode()}:"


def artifact(machine: str = "x86_64", kind: str = "llvm", key: SigningKey | None = None) -> bytes:
    """An artifact like a job's, with a library that no machine runs."""
    tensor = {"name": "x", "shape": [2, 3], "dtype": "float32"}
    target = {"kind": kind, "mtriple": f"{machine}-linux-gnu"}
    library = b"compiled " * 100_000
    manifest = {"model_sha": "sha", "target": json.dumps(target), "threads": 2}
    manifest |= {"inputs": [tensor], "outputs": [tensor], "library_sha256": sha256(library).hexdigest()}
    text = json.dumps(manifest).encode()
    signature = [] if key is None else [("manifest.sig", key.sign(text).encode())]
    return archive.pack([("manifest.json", text), *signature, ("model.so", library)])


def publish(service: Service, worker: Worker, data: bytes, secs: float, **request: Any) -> str:
    """Submit a job, and end it as if it had published an artifact. Return its id."""
    job_id = service.submit(**request)
    with service.database.begin() as session:
        jobs.set_device_class(session, job_id, worker.device.key)
        jobs.set_artifacts(session, job_id, tuned_sha=blobs.put(session, data))
        jobs.set_end_to_end(session, job_id, "tuned", [secs])
        jobs.advance(session, job_id, UNFINISHED, JobState.DONE, service.context.now())
    return job_id

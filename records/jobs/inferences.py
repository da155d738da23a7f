"""Inference jobs: an artifact that runs on a device with a user's inputs, and what it computed."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import msgspec
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.inference import Comparison
from records.jobs import models
from records.jobs.jobs import IdempotencyConflict
from records.jobs.models import UploadKind
from records.storage.database import NotFound
from records.storage.statements import insert_missing
from records.storage.tables import InferenceRow


class InferenceNotFound(NotFound):
    """The job is no inference job."""


@dataclass(frozen=True)
class Inference:
    """The dataset `inputs` of an inference job, and the blob of its outputs, None until the device sent them.

    `comparison` is None until the job is done.
    """

    inputs: str
    outputs_sha: str | None
    comparison: Comparison | None


def add(session: Session, job_id: str, inputs: str) -> None:
    """Make a job an inference job with a dataset, unless it has the same already.

    Raises DatasetNotFound, and IdempotencyConflict if it has another one.
    """
    models.get(session, inputs, UploadKind.DATASET)
    insert_missing(session, InferenceRow, {"job_id": job_id, "inputs": inputs}, key=["job_id"])
    if get(session, job_id).inputs != inputs:
        raise IdempotencyConflict(
            f"the idempotency key belongs to job {job_id} with other inputs: use a new key"
        )


def get(session: Session, job_id: str) -> Inference:
    """Return the inference of a job. Raises InferenceNotFound."""
    row = session.scalars(select(InferenceRow).where(InferenceRow.job_id == job_id)).first()
    if row is None:
        raise InferenceNotFound(f"job {job_id!r} is no inference job")
    found = None if row.comparison is None else msgspec.convert(row.comparison, Comparison)
    return Inference(row.inputs, row.outputs_sha, found)


def set_outputs(session: Session, job_id: str, outputs_sha: str) -> None:
    """Store the blob of a job's outputs."""
    own = update(InferenceRow).where(InferenceRow.job_id == job_id)
    session.execute(own.values(outputs_sha=outputs_sha))


def set_comparison(session: Session, job_id: str, comparison: Comparison) -> None:
    """Store how a job's outputs differ from the reference's."""
    own = update(InferenceRow).where(InferenceRow.job_id == job_id)
    session.execute(own.values(comparison=asdict(comparison)))

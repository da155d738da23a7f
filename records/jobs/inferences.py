"""Inference jobs, which run an artifact on a device with a user's inputs, and their results."""

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
    """The job isn't an inference job."""


@dataclass(frozen=True)
class Inference:
    """The data of an inference job: its dataset `inputs`, and its results.

    `outputs_sha` is the blob of the outputs; None until the device has sent them. `comparison` is None until
    the job is done.
    """

    inputs: str
    outputs_sha: str | None
    comparison: Comparison | None


def add(session: Session, job_id: str, inputs: str) -> None:
    """Store the dataset of an inference job, unless it is stored already.

    Raises DatasetNotFound; IdempotencyConflict if the job has another dataset.
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
        raise InferenceNotFound(f"job {job_id!r} isn't an inference job")
    found = None if row.comparison is None else msgspec.convert(row.comparison, Comparison)
    return Inference(row.inputs, row.outputs_sha, found)


def set_outputs(session: Session, job_id: str, outputs_sha: str) -> None:
    """Store the blob of a job's outputs."""
    own = update(InferenceRow).where(InferenceRow.job_id == job_id)
    session.execute(own.values(outputs_sha=outputs_sha))


def set_comparison(session: Session, job_id: str, comparison: Comparison) -> None:
    """Store the comparison of a job's outputs with the reference."""
    own = update(InferenceRow).where(InferenceRow.job_id == job_id)
    session.execute(own.values(comparison=asdict(comparison)))

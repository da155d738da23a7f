"""The quantized forms of models. Jobs that ask for the same form share it."""

from __future__ import annotations

from dataclasses import asdict
from typing import NamedTuple

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.job import Quantize
from core.quantization import Quantization
from records.jobs.jobs import JobRequest
from records.storage.statements import insert_missing
from records.storage.tables import QuantizedModelRow


class QuantizedModel(NamedTuple):
    """The blob of a quantized model, and how accurate it is."""

    sha: str
    accuracy: Quantization


def put(session: Session, request: JobRequest, sha: str, accuracy: Quantization) -> None:
    """Store the form of a model that a request asks for, as the blob `sha`; one that is there stays."""
    key = _key(request)
    row = key | {"sha": sha, "accuracy": asdict(accuracy)}
    insert_missing(session, QuantizedModelRow, row, key=list(key))


def find(session: Session, request: JobRequest) -> QuantizedModel | None:
    """Return the form of a model that a request asks for; None until it was made, and for floats."""
    if request.quantize is Quantize.NONE:
        return None
    row = session.scalars(select(QuantizedModelRow).filter_by(**_key(request))).first()
    return None if row is None else QuantizedModel(row.sha, msgspec.convert(row.accuracy, Quantization))


def file_sha(session: Session, request: JobRequest) -> str:
    """Return the blob of the model that is compiled: the user's, or its quantized form."""
    found = find(session, request)
    return request.model_sha if found is None else found.sha


def _key(request: JobRequest) -> dict[str, str]:
    return {
        "model_sha": request.model_sha,
        "quantize": request.quantize,
        "calibration": request.calibration or "",
    }

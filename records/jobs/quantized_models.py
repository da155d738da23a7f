"""The quantized forms of models. Jobs that request the same form share it."""

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
    """The blob of a quantized model, and its accuracy."""

    sha: str
    accuracy: Quantization


def put(session: Session, request: JobRequest, sha: str, accuracy: Quantization) -> None:
    """Store the blob of the quantized form that a request needs, unless one is stored already."""
    key = _key(request)
    row = key | {"sha": sha, "accuracy": asdict(accuracy)}
    insert_missing(session, QuantizedModelRow, row, key=list(key))


def find(session: Session, request: JobRequest) -> QuantizedModel | None:
    """Return the quantized form that a request needs; None if it needs none or it isn't made yet."""
    if request.quantize is Quantize.NONE:
        return None
    row = session.scalars(select(QuantizedModelRow).filter_by(**_key(request))).first()
    return None if row is None else QuantizedModel(row.sha, msgspec.convert(row.accuracy, Quantization))


def file_sha(session: Session, request: JobRequest) -> str:
    """Return the blob of the model to compile: the quantized form if there is one, else the user's model."""
    found = find(session, request)
    return request.model_sha if found is None else found.sha


def _key(request: JobRequest) -> dict[str, str]:
    return {
        "model_sha": request.model_sha,
        "quantize": request.quantize,
        "calibration": request.calibration or "",
    }

"""The quantized forms of models. Jobs that request the same form for similar devices share it."""

from __future__ import annotations

from dataclasses import asdict
from typing import NamedTuple

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.device import Device
from core.job import Quantize
from core.quantization import Quantization
from records.jobs.jobs import JobRequest
from records.storage.statements import insert_missing
from records.storage.tables import QuantizedModelRow


class QuantizedModel(NamedTuple):
    """The blob of a quantized model, and its accuracy."""

    sha: str
    accuracy: Quantization


def put(
    session: Session, request: JobRequest, device: Device | None, sha: str, accuracy: Quantization
) -> None:
    """Store the blob of the quantized form that a request needs on a device, unless one is stored already."""
    key = _key(request, device)
    row = key | {"sha": sha, "accuracy": asdict(accuracy)}
    insert_missing(session, QuantizedModelRow, row, key=list(key))


def find(session: Session, request: JobRequest, device: Device | None) -> QuantizedModel | None:
    """Return the quantized form that a request needs on a device; None if it needs none or it isn't made
    yet."""
    if request.quantize is Quantize.NONE:
        return None
    row = session.scalars(select(QuantizedModelRow).filter_by(**_key(request, device))).first()
    return None if row is None else QuantizedModel(row.sha, msgspec.convert(row.accuracy, Quantization))


def file_sha(session: Session, request: JobRequest, device: Device) -> str:
    """Return the blob of the model to compile: the quantized form if there is one, else the user's model."""
    found = find(session, request, device)
    return request.model_sha if found is None else found.sha


def wants_narrow_weights(request: JobRequest, device: Device | None) -> bool:
    """Return whether the form has weights of 7 bits. Only products of values in 8 bits are faster by
    these."""
    has_values = request.quantize is Quantize.INT8 and request.calibration is not None
    return has_values and device is not None and device.prefers_narrow_weights


def _key(request: JobRequest, device: Device | None) -> dict[str, str | bool]:
    return {
        "model_sha": request.model_sha,
        "quantize": request.quantize,
        "calibration": request.calibration or "",
        "narrow": wants_narrow_weights(request, device),
    }

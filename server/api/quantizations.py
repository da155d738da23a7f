"""The quantized models of jobs, and their accuracy."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from core.job import Quantize
from records import devices
from records.jobs import jobs, quantized_models
from records.jobs.quantized_models import QuantizedModel
from server.api.downloads import file_answer
from server.api.ids import JobId
from server.context import ContextDep
from server.problems import Problem, problems

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

ONNX_ANSWER = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


class LayerAccuracyBody(BaseModel):
    """A layer of a quantized model, with signal-to-noise ratios in decibels; null without an error.

    `own_db` is measured with the float model's inputs, so it shows only this layer's errors. `total_db` is
    measured with the quantized model's inputs. A `kept` layer computes in float32.
    """

    name: str
    operator: str
    kept: bool
    own_db: float | None
    total_db: float | None


class OutputAccuracyBody(BaseModel):
    """An output of a quantized model, with its signal-to-noise ratio in decibels; null without an error."""

    name: str
    db: float | None


class QuantizationBody(BaseModel):
    """The quantization of the job's model, and its accuracy relative to float32.

    With `weights_only`, activations stay floats. `samples` is the number of calibration samples that set the
    ranges of values; 0 without calibration data. The accuracy was measured on `compared` samples, or on as
    many random inputs. `kept` is the number of layers that stayed in float32, and `narrow` the number of
    layers whose weights have 7 bits instead of 8. `text` is a summary.
    """

    quantize: Quantize
    weights_only: bool
    samples: int
    compared: int
    kept: int
    outputs: list[OutputAccuracyBody]
    layers: list[LayerAccuracyBody]
    narrow: int
    text: str


@router.get("/{job_id}/quantization", responses=problems(404))
def show(job_id: JobId, context: ContextDep) -> QuantizationBody:
    """Return the quantization of the job's model, layer by layer."""
    with context.database.reading() as session:
        accuracy = _found(session, job_id).accuracy
    return QuantizationBody.model_validate(asdict(accuracy) | {"text": accuracy.text})


@router.get(
    "/{job_id}/quantization/model",
    response_class=StreamingResponse,
    responses={200: ONNX_ANSWER, **problems(404)},
)
async def model(job_id: JobId, context: ContextDep) -> Response:
    """Return the quantized model of a job as an ONNX file."""

    def find() -> str:
        with context.database.reading() as session:
            return _found(session, job_id).sha

    sha = await run_in_threadpool(find)
    return await file_answer(context, sha, f"{job_id}.onnx", "application/octet-stream")


def _found(session: Session, job_id: str) -> QuantizedModel:
    """Return the quantized model of a job. Raises JobNotFound and Problem."""
    job = jobs.get(session, job_id)
    device = None if job.device_class is None else devices.get_class(session, job.device_class)
    found = quantized_models.find(session, job.request, device)
    if found is None:
        detail = (
            f"Job {job_id} has no quantized model: it didn't request one, or the service hasn't made it yet."
        )
        raise Problem(404, "not-quantized", detail)
    return found

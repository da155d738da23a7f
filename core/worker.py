"""Workers: their states, their roles and their vitals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MAX_HEALTH_ERROR_CHARS = 500
# Seconds of silence after which a worker is lost. A worker calls at least every 30 s.
LOST_AFTER_S = 40.0


class WorkerState(StrEnum):
    """A worker's current activity. Only a READY worker gets work."""

    PROBING = "probing"
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"
    OFFLINE = "offline"


class Role(StrEnum):
    """The purpose of a worker: to measure on its device, or to build for other devices."""

    MEASURE = "measure"
    BUILD = "build"


class DesiredState(StrEnum):
    """The state that an administrator has set for a worker."""

    WORK = "work"
    DRAIN = "drain"
    EVICTED = "evicted"
    UPDATE = "update"


@dataclass(frozen=True)
class Vitals:
    """A worker's report on its health. Unknown values are None.

    `load` is the load average of one minute. If the worker measures a GPU, temperature, memory and power are
    the GPU's, and `driver` is its driver's version. `candidates` and `candidates_done` are about the held
    lease. `sandbox_gaps` says what the sandbox doesn't keep measured code from. `health_error` says
    why the worker can't do its work, in one line of at most MAX_HEALTH_ERROR_CHARS. Both are empty if all is
    well. A worker without ONNX Runtime has no `onnxruntime_version`. A worker that `infers` can run
    artifacts with users' inputs; older versions can't.
    """

    tunefarm_version: str = ""
    tvm_version: str = ""
    load: float | None = None
    temperature_c: float | None = None
    memory_free_bytes: int | None = None
    candidates: int | None = None
    candidates_done: int | None = None
    sandbox_gaps: str = ""
    health_error: str = ""
    power_w: float | None = None
    driver: str = ""
    onnxruntime_version: str = ""
    infers: bool = False

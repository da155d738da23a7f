"""Workers: their states, their roles and their vitals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MAX_TROUBLE_CHARS = 500
# A worker calls at least every 30 s.
LOST_AFTER_S = 40.0


class WorkerState(StrEnum):
    """A worker's current activity. Only a READY worker gets work."""

    PROBING = "probing"
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"
    OFFLINE = "offline"


class Role(StrEnum):
    """The purpose of a worker: to measure on its device, or to build what other devices measure."""

    MEASURE = "measure"
    BUILD = "build"


class Wanted(StrEnum):
    """The instruction that people have given to a worker."""

    WORK = "work"
    DRAIN = "drain"
    EVICTED = "evicted"
    UPDATE = "update"


@dataclass(frozen=True)
class Vitals:
    """A worker's health, as far as it knows it.

    `load` is the average number of processes that wanted to run in the last minute. Of a worker that measures
    a GPU, temperature, memory and power are the GPU's, and `driver` is its driver's version. `candidates` and
    `candidates_done` count those of the held lease. `uncontained` says what the sandbox doesn't keep measured
    code from, `trouble` why the worker can't do its work, in one line of at most MAX_TROUBLE_CHARS; both are
    empty when there is nothing to say.
    """

    tunefarm_version: str = ""
    tvm_version: str = ""
    load: float | None = None
    temperature_c: float | None = None
    memory_free_bytes: int | None = None
    candidates: int | None = None
    candidates_done: int | None = None
    uncontained: str = ""
    trouble: str = ""
    power_w: float | None = None
    driver: str = ""

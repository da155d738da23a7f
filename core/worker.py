"""Workers: what they are there for, what they do, and how they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MAX_TROUBLE_CHARS = 500


class WorkerState(StrEnum):
    """What a worker does at the moment; only a ready one is given work."""

    PROBING = "probing"
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"
    OFFLINE = "offline"


class Role(StrEnum):
    """What a worker is there for: to measure on its device, or to build what other devices measure."""

    MEASURE = "measure"
    BUILD = "build"


class Wanted(StrEnum):
    """What people want a worker to do."""

    WORK = "work"
    DRAIN = "drain"
    EVICTED = "evicted"


@dataclass(frozen=True)
class Vitals:
    """How a worker is, as far as it knows. `load` is what wanted to run on average over the last minute;
    `candidates` are those of the held lease; `uncontained` says what measured code isn't kept from; `trouble`
    why the worker can't measure, in one line of at most 500 characters, empty while it can."""

    tunefarm_version: str = ""
    tvm_version: str = ""
    load: float | None = None
    temperature_c: float | None = None
    memory_free_bytes: int | None = None
    candidates: int | None = None
    candidates_done: int | None = None
    uncontained: str = ""
    trouble: str = ""

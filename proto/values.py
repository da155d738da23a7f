"""What travels between the service and its workers, as plain values.

The worker and the server work with these; only `proto.convert` knows how they look on the wire.
Durations are seconds, sizes bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from search.device import Device
from search.measurement import Measurement
from search.measurement import Outcome as Outcome  # for those who know the search only from here

PROTOCOL = 1
MAX_MESSAGE_BYTES = 64 << 20
MAX_RESULTS = 1000
MAX_WAIT_S = 30.0


class WorkerState(StrEnum):
    """What a worker does at the moment; only a ready one is given work."""

    PROBING = "probing"
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"


class Wanted(StrEnum):
    """What people want a worker to do."""

    WORK = "work"
    DRAIN = "drain"
    EVICTED = "evicted"


@dataclass(frozen=True)
class Vitals:
    """How a worker is, as far as it knows. `load` is what wanted to run on average over the last minute;
    `candidates` are those of the held lease; `uncontained` says what measured code isn't kept from."""

    tunefarm_version: str = ""
    tvm_version: str = ""
    load: float | None = None
    temperature_c: float | None = None
    memory_free_bytes: int | None = None
    candidates: int | None = None
    candidates_done: int | None = None
    uncontained: str = ""


@dataclass(frozen=True)
class LeaseId:
    """One attempt at a lease."""

    id: str
    attempt: int

    def __post_init__(self) -> None:
        _check_name("a lease id", self.id)
        if self.attempt < 0:
            raise ValueError(f"a lease's attempt must not be negative, not {self.attempt}")


@dataclass(frozen=True)
class Limits:
    """What one candidate, or one module run, may use before it counts as failed."""

    build_timeout_s: float = 30.0
    run_timeout_s: float = 20.0
    module_timeout_s: float = 120.0
    memory_bytes: int = 4 << 30

    def __post_init__(self) -> None:
        for name in ("build_timeout_s", "run_timeout_s", "module_timeout_s", "memory_bytes"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"the limit {name} must be positive, not {getattr(self, name)}")


@dataclass(frozen=True)
class Candidate:
    """A trace to replay on a workload, whose arguments at `constants` are constants of the model.

    `best_s` is the best latency known of the workload on this device class.
    """

    trial_id: int
    workload_hash: str
    trace: str
    constants: tuple[int, ...] = ()
    best_s: float | None = None

    def __post_init__(self) -> None:
        if self.best_s is not None and not 0.0 < self.best_s < math.inf:
            raise ValueError(f"the best latency known must be positive, not {self.best_s}")


@dataclass(frozen=True)
class ModuleRun:
    """A whole packed module to be timed end to end."""

    id: int
    kind: Literal["untuned", "tuned"]
    artifact_sha: str


@dataclass(frozen=True)
class Lease:
    """Work leased together: candidates or one module run."""

    id: LeaseId
    target: str
    limits: Limits
    expires_after_s: float
    candidates: tuple[Candidate, ...] = ()
    module_run: ModuleRun | None = None

    def __post_init__(self) -> None:
        if bool(self.candidates) == (self.module_run is not None):
            raise ValueError("a lease is for candidates or for one module run")
        if not 0 < self.expires_after_s < math.inf:
            raise ValueError(f"a lease's expires_after_s must be positive, not {self.expires_after_s}")


@dataclass(frozen=True)
class Result:
    """The result of one candidate or of one module run; `number` is unique within a session."""

    number: int
    lease: LeaseId
    measurement: Measurement
    trial_id: int | None = None
    module_run_id: int | None = None

    def __post_init__(self) -> None:
        if (self.trial_id is None) == (self.module_run_id is None):
            raise ValueError("a result is of a trial or of a module run")


@dataclass(frozen=True)
class WorkerReport:
    """A worker's whole state: what it sends with every Synchronize."""

    worker_id: str
    session_id: str
    starting: bool
    state: WorkerState
    device: Device | None = None
    held: LeaseId | None = None
    results: tuple[Result, ...] = ()
    slots: int = 0
    wait_s: float = 0.0
    vitals: Vitals = field(default_factory=Vitals)

    def __post_init__(self) -> None:
        _check_name("a worker id", self.worker_id)
        _check_name("a session id", self.session_id)
        if len(self.results) > MAX_RESULTS:
            raise ValueError(f"at most {MAX_RESULTS} results fit in one call, not {len(self.results)}")
        if self.state is WorkerState.READY and self.device is None:
            raise ValueError("a ready worker must send its device's fingerprint")
        if self.slots < 0 or not 0.0 <= self.wait_s < math.inf:
            raise ValueError("slots and wait_s must not be negative")


@dataclass(frozen=True)
class Answer:
    """What the worker should do now.

    `keeps` names the held lease when the worker should go on with it; `lease` is a new one, whole.
    With neither, the worker holds nothing. `fenced` and EVICTED go together when it is people who want the
    worker away, not another session of it.
    """

    fenced: bool = False
    keeps: LeaseId | None = None
    lease: Lease | None = None
    acknowledged: tuple[int, ...] = ()
    call_again_after_s: float = 1.0
    wanted: Wanted = Wanted.WORK

    def __post_init__(self) -> None:
        if self.keeps is not None and self.lease is not None:
            raise ValueError("a worker keeps its lease or gets another, not both")


def _check_name(what: str, text: str) -> None:
    if not 0 < len(text) <= 128 or not text.isprintable() or " " in text:
        raise ValueError(f"{what} must be 1 to 128 printable characters without spaces")

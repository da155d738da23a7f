"""What travels between the service and its workers, as plain values.

The worker and the server work with these; only `proto.convert` knows how they look on the wire.
Durations are seconds, sizes bytes.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from search.device import Device
from search.measurement import Measurement
from search.measurement import Outcome as Outcome  # for those who know the search only from here

PROTOCOL = 2
MAX_MESSAGE_BYTES = 64 << 20
MAX_RESULTS = 1000
MAX_WAIT_S = 30.0
MAX_LIBRARY_BYTES = 32 << 20
MAX_MACHINES = 16
MAX_TROUBLE_CHARS = 500
# What a candidate's process may take beyond what it has anyway.
MEMORY_BYTES = 4 << 30
# A packed model is in memory several times over while it is loaded: as read, as a library, its weights.
MEMORY_PER_ARTIFACT_BYTE = 6
MAX_PROFILE_CHARS = 4096
MAX_MODULE_RUNS = 16
# The third is what was published of the same model before.
ModuleKind: TypeAlias = Literal["untuned", "tuned", "published"]
_SHA256 = re.compile("[0-9a-f]{64}")
_MACHINE = re.compile("[A-Za-z0-9_]{1,32}")


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
    """What one candidate, or one turn of a module run, may use before it counts as failed."""

    build_timeout_s: float = 30.0
    run_timeout_s: float = 20.0
    module_timeout_s: float = 120.0
    memory_bytes: int = MEMORY_BYTES

    @classmethod
    def for_module(cls, artifact_bytes: int) -> Limits:
        """Of a module run: its weights are in the artifact, what it computes takes more."""
        return cls(memory_bytes=MEMORY_BYTES + MEMORY_PER_ARTIFACT_BYTE * artifact_bytes)

    def __post_init__(self) -> None:
        for name in ("build_timeout_s", "run_timeout_s", "module_timeout_s", "memory_bytes"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"the limit {name} must be positive, not {getattr(self, name)}")


@dataclass(frozen=True)
class Candidate:
    """A trace to replay on a workload, whose arguments at `constants` are constants of the model.

    `best_s` is the best latency known of the workload on this device class. With `library_sha` a builder made
    a library of it, which is loaded in place of building.
    """

    trial_id: int
    workload_hash: str
    trace: str
    constants: tuple[int, ...] = ()
    best_s: float | None = None
    library_sha: str | None = None

    def __post_init__(self) -> None:
        if self.best_s is not None and not 0.0 < self.best_s < math.inf:
            raise ValueError(f"the best latency known must be positive, not {self.best_s}")


@dataclass(frozen=True)
class ModuleRun:
    """A whole packed module to be timed end to end; first, if it is to `compare`, its outputs are compared
    with those of the untuned library that is packed with it."""

    id: int
    kind: ModuleKind
    artifact_sha: str
    compare: bool = False


@dataclass(frozen=True)
class Lease:
    """Work leased together: candidates, to be measured or to `build` for the target; or module runs of one
    model, to be timed in turns."""

    id: LeaseId
    target: str
    limits: Limits
    expires_after_s: float
    candidates: tuple[Candidate, ...] = ()
    module_runs: tuple[ModuleRun, ...] = ()
    build: bool = False

    def __post_init__(self) -> None:
        if bool(self.candidates) == bool(self.module_runs):
            raise ValueError("a lease is for candidates or for module runs")
        if len(self.module_runs) > MAX_MODULE_RUNS:
            raise ValueError(f"a lease has at most {MAX_MODULE_RUNS} module runs")
        if self.build and not self.candidates:
            raise ValueError("only candidates are leased to be built")
        if not 0 < self.expires_after_s < math.inf:
            raise ValueError(f"a lease's expires_after_s must be positive, not {self.expires_after_s}")


@dataclass(frozen=True)
class Built:
    """A candidate whose library is stored, and the seconds that building it took."""

    sha: str
    build_secs: float

    def __post_init__(self) -> None:
        if not _SHA256.fullmatch(self.sha):
            raise ValueError("what names a library is its SHA-256 in lower-case hexadecimal")
        if not 0.0 <= self.build_secs < math.inf:
            raise ValueError(f"build_secs must not be negative, not {self.build_secs}")


@dataclass(frozen=True)
class Library:
    """What a session has built of a trial of its lease, packed."""

    session_id: str
    lease: LeaseId
    trial_id: int
    data: bytes

    @property
    def sha(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Result:
    """The result of one candidate or of one module run; `number` is unique within a session."""

    number: int
    lease: LeaseId
    measurement: Measurement | Built
    trial_id: int | None = None
    module_run_id: int | None = None

    def __post_init__(self) -> None:
        if (self.trial_id is None) == (self.module_run_id is None):
            raise ValueError("a result is of a trial or of a module run")


@dataclass(frozen=True)
class WorkerReport:
    """A worker's whole state: what it sends with every Synchronize. A builder links for `builds_for`.
    `calibrated`: the device's profile was measured since the last answer that it got."""

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
    role: Role = Role.MEASURE
    builds_for: tuple[str, ...] = ()
    calibrated: bool = False

    def __post_init__(self) -> None:
        _check_name("a worker id", self.worker_id)
        _check_name("a session id", self.session_id)
        if len(self.results) > MAX_RESULTS:
            raise ValueError(f"at most {MAX_RESULTS} results fit in one call, not {len(self.results)}")
        if self.state is WorkerState.READY and self.device is None:
            raise ValueError("a ready worker must send its device's fingerprint")
        if self.state is WorkerState.READY and self.role is Role.BUILD and not self.builds_for:
            raise ValueError("a worker that builds must say for which machines")
        if len(self.builds_for) > MAX_MACHINES or not all(map(_MACHINE.fullmatch, self.builds_for)):
            raise ValueError(f"machines are at most {MAX_MACHINES} names such as x86_64")
        if self.slots < 0 or not 0.0 <= self.wait_s < math.inf:
            raise ValueError("slots and wait_s must not be negative")


@dataclass(frozen=True)
class Answer:
    """What the worker should do now.

    `keeps` names the held lease when the worker should go on with it; `lease` is a new one, whole.
    With neither, the worker holds nothing. `fenced` and EVICTED go together when it is people who want the
    worker away, not another session of it. It is to `calibrate` its device again once it holds nothing.
    """

    fenced: bool = False
    keeps: LeaseId | None = None
    lease: Lease | None = None
    acknowledged: tuple[int, ...] = ()
    call_again_after_s: float = 1.0
    wanted: Wanted = Wanted.WORK
    calibrate: bool = False

    def __post_init__(self) -> None:
        if self.keeps is not None and self.lease is not None:
            raise ValueError("a worker keeps its lease or gets another, not both")


def _check_name(what: str, text: str) -> None:
    if not 0 < len(text) <= 128 or not text.isprintable() or " " in text:
        raise ValueError(f"{what} must be 1 to 128 printable characters without spaces")

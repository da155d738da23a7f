"""The messages between the service and its workers, as dataclasses; `proto.convert` puts them on the wire.

Durations are seconds, sizes bytes.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field

from core.device import Device
from core.lease import Lease, LeaseId, check_name
from core.measurement import Built, Measurement
from core.worker import DesiredState, Role, Vitals, WorkerState

PROTOCOL = 3
MAX_MESSAGE_BYTES = 64 << 20
MAX_RESULTS = 1000
MAX_WAIT_S = 30.0
MAX_LIBRARY_BYTES = 32 << 20
MAX_OUTPUTS_BYTES = 32 << 20
MAX_PLATFORMS = 16
MAX_HARDWARE = 4096
MAX_PROFILE_CHARS = 4096
_PLATFORM = re.compile("[A-Za-z0-9_]{1,32}")


class _Upload:
    """A file that a session sends under its lease."""

    data: bytes

    @property
    def sha(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class LibraryUpload(_Upload):
    """A packed library that a session built for a trial of its lease."""

    session_id: str
    lease: LeaseId
    trial_id: int
    data: bytes


@dataclass(frozen=True)
class OutputsUpload(_Upload):
    """The outputs of a module run that a session made under its lease: an .npz file."""

    session_id: str
    lease: LeaseId
    module_run_id: int
    data: bytes


@dataclass(frozen=True)
class Result:
    """The result of one candidate or of one module run; `number` is unique within a session.

    `measurement` is a Built when the lease was to build.
    """

    number: int
    lease: LeaseId
    measurement: Measurement | Built
    trial_id: int | None = None
    module_run_id: int | None = None

    def __post_init__(self) -> None:
        if (self.trial_id is None) == (self.module_run_id is None):
            raise ValueError("a result belongs to a trial or to a module run")


@dataclass(frozen=True)
class WorkerReport:
    """A worker's whole state, which it sends with every Synchronize.

    `builds_for` names the platforms that a builder links for. `boot_id` is empty if it is unknown.
    `calibrated`: the device was calibrated after the last response to this session. `hardware` names the CPUs
    or the GPU that candidates run on.
    """

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
    boot_id: str = ""
    hardware: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name("a worker id", self.worker_id)
        check_name("a session id", self.session_id)
        if self.boot_id:
            check_name("a boot id", self.boot_id)
        if len(self.hardware) > MAX_HARDWARE:
            raise ValueError(f"at most {MAX_HARDWARE} CPUs fit in one call, not {len(self.hardware)}")
        for name in self.hardware:
            check_name("the name of a CPU or GPU", name)
        if len(self.results) > MAX_RESULTS:
            raise ValueError(f"at most {MAX_RESULTS} results fit in one call, not {len(self.results)}")
        if self.state is WorkerState.READY and self.device is None:
            raise ValueError("a ready worker must send its device's fingerprint")
        if self.state is WorkerState.READY and self.role is Role.BUILD and not self.builds_for:
            raise ValueError("a worker that builds must name its platforms")
        if len(self.builds_for) > MAX_PLATFORMS or not all(map(_PLATFORM.fullmatch, self.builds_for)):
            raise ValueError(f"platforms are at most {MAX_PLATFORMS} names such as x86_64")
        if self.slots < 0 or not 0.0 <= self.wait_s < math.inf:
            raise ValueError("slots and wait_s must not be negative")


@dataclass(frozen=True)
class SyncResponse:
    """The service's response to a worker's Synchronize call.

    `keeps` names the held lease if the worker should continue it; `lease` is a new one. With neither, the
    worker should hold nothing. `fenced`: another session has taken over or, with EVICTED, people have evicted
    the worker. `calibrate`: the worker should calibrate its device once it holds nothing. `service_version`
    is the service's version of tunefarm, empty if it is unknown.
    """

    fenced: bool = False
    keeps: LeaseId | None = None
    lease: Lease | None = None
    acknowledged: tuple[int, ...] = ()
    call_again_after_s: float = 1.0
    desired_state: DesiredState = DesiredState.WORK
    calibrate: bool = False
    service_version: str = ""

    def __post_init__(self) -> None:
        if self.keeps is not None and self.lease is not None:
            raise ValueError("a worker keeps its lease or gets another, not both")

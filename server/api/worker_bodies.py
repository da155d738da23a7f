"""The bodies of answers about workers. Times are epoch seconds, durations seconds, sizes bytes."""

from __future__ import annotations

from pydantic import BaseModel

from records.fleet.devices import WorkerInfo
from records.fleet.leases import HeldLease


class WorkerBody(BaseModel):
    """A worker as last seen. `connected`: it was seen lately. `state` is what it said then, `wanted` what
    people want it to do: work, drain or be evicted. Its `role` is measure or build; one that builds measures
    nothing, is of no device class, and its trials are those that it built, for the machines in `builds_for`.

    `trials_per_minute` are those of the last five minutes; `trial_s` is what a trial takes on it. Null is
    what isn't known: `load` (processes that wanted to run, over a minute), `temperature_c` (of its
    processor). `candidates` and `candidates_done` are of the `lease` it holds. `trouble` says why it can't
    measure (or build), in one line; it is empty while it can, or may yet turn out to. `calibrate`:
    people want it to measure its device's profile again, which it hasn't yet.
    """

    id: str
    state: str
    wanted: str
    role: str
    builds_for: list[str]
    connected: bool
    device_class: str | None
    device_name: str | None
    cores: int | None
    last_seen_at: float
    last_seen_ago_s: float
    trials_done: int
    failures: int
    failures_by_kind: dict[str, int]
    trials_per_minute: float
    trial_s: float | None
    load: float | None
    temperature_c: float | None
    memory_free_bytes: int | None
    tunefarm_version: str
    tvm_version: str
    lease: str | None
    candidates: int | None
    candidates_done: int | None
    uncontained: str
    trouble: str
    calibrate: bool

    @classmethod
    def of(
        cls, worker: WorkerInfo, now: float, trials_per_minute: float, held: HeldLease | None
    ) -> WorkerBody:
        vitals = worker.vitals
        return cls(
            id=worker.id,
            state=worker.state.value,
            wanted=worker.wanted.value,
            role=worker.role.value,
            builds_for=list(worker.builder.builds_for) if worker.builder else [],
            connected=not (worker.has_left or worker.is_lost(now)),
            device_class=worker.device_class,
            device_name=worker.device_name,
            cores=worker.cores,
            last_seen_at=worker.last_seen_at,
            last_seen_ago_s=max(now - worker.last_seen_at, 0.0),
            trials_done=worker.trials_done,
            failures=worker.failures,
            failures_by_kind=dict(worker.failures_by_kind),
            trials_per_minute=trials_per_minute,
            trial_s=worker.trial_s,
            load=vitals.load,
            temperature_c=vitals.temperature_c,
            memory_free_bytes=vitals.memory_free_bytes,
            tunefarm_version=vitals.tunefarm_version,
            tvm_version=vitals.tvm_version,
            lease=held.id if held else None,
            candidates=vitals.candidates if held else None,
            candidates_done=vitals.candidates_done if held else None,
            uncontained=vitals.uncontained,
            trouble=vitals.trouble,
            calibrate=worker.calibrate,
        )


class WorkersBody(BaseModel):
    items: list[WorkerBody]


class ProfileBody(BaseModel):
    """What a core does, as calibration measured it: clock rate while vectors are multiplied, vector
    multiply-adds a cycle by element type, their latency in cycles, vector registers, vector loads a cycle,
    cycles to gather a lane; bytes a cycle from each cache and from memory, and what all cores together draw
    from memory; seconds to launch and join all threads. What is `derived` wasn't measured, but follows from
    the rest or from the instruction set."""

    hertz: float
    multiply_adds: dict[str, float]
    latency_cycles: float
    registers: int
    loads: float
    gather_cycles: float
    l1_rate: float
    l2_rate: float
    l3_rate: float
    memory_rate: float
    memory_rate_all: float
    launch_s: float
    derived: list[str]


class DeviceClassBody(BaseModel):
    """Devices of equal hardware and toolchain; `key` and `name` can be a job's target. The `profile` is null
    until one of them has been calibrated."""

    key: str
    name: str
    triple: str
    mcpu: str
    features: list[str]
    cores: int
    vector_bytes: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    toolchain: str
    target: str
    profile: ProfileBody | None


class DeviceClassesBody(BaseModel):
    items: list[DeviceClassBody]

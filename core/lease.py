"""Leases: the work that a worker holds, and the limits under which it runs.

Durations are seconds, sizes bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

# The memory that a candidate's process may allocate, on top of its memory at the start.
MEMORY_BYTES = 4 << 30
# The bytes of an artifact that a slow device reads, unpacks and loads in a second.
SECONDS_PER_ARTIFACT_BYTE = 1e-7
# The memory to load a packed model, in multiples of its size: the file, the library, the weights.
MEMORY_PER_ARTIFACT_BYTE = 6
MAX_MODULE_RUNS = 16
# The kind of a module run: the model compiled by TVM's defaults, with the best schedules, or as an earlier
# job published it; the user's ONNX model in ONNX Runtime; or an artifact to call once with the user's inputs.
ModuleKind: TypeAlias = Literal["untuned", "tuned", "published", "onnxruntime", "inference"]


@dataclass(frozen=True)
class LeaseId:
    """A lease's id and the number of its attempt."""

    id: str
    attempt: int

    def __post_init__(self) -> None:
        check_name("a lease id", self.id)
        if self.attempt < 0:
            raise ValueError(f"a lease's attempt must not be negative, not {self.attempt}")


@dataclass(frozen=True)
class Limits:
    """The time and memory beyond which a candidate, or one turn of a module run, counts as failed."""

    build_timeout_s: float = 30.0
    run_timeout_s: float = 20.0
    module_timeout_s: float = 120.0
    memory_bytes: int = MEMORY_BYTES

    @classmethod
    def for_module(cls, artifact_bytes: int) -> Limits:
        """Return the limits of a module run, whose time and memory grow with its artifact."""
        return cls(
            module_timeout_s=cls.module_timeout_s + SECONDS_PER_ARTIFACT_BYTE * artifact_bytes,
            memory_bytes=MEMORY_BYTES + MEMORY_PER_ARTIFACT_BYTE * artifact_bytes,
        )

    def __post_init__(self) -> None:
        for name in ("build_timeout_s", "run_timeout_s", "module_timeout_s", "memory_bytes"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"the limit {name} must be positive, not {getattr(self, name)}")


@dataclass(frozen=True)
class Candidate:
    """A trace to replay on a workload, then to build or to measure.

    `constants` are the indices of the workload's arguments that are constants of the model. `best_s` is the
    workload's best known latency on this device class. If a builder has built the candidate, `library_sha`
    names the library: the device loads it and compiles nothing.
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
    """A packed module, or an ONNX model, to be timed end to end.

    With `compare`, its outputs are first compared with those of the untuned library in the same package.
    `shapes` are the shapes of an ONNX model's inputs by name, as JSON; empty for a packed module.
    """

    id: int
    kind: ModuleKind
    artifact_sha: str
    compare: bool = False
    shapes: str = ""


@dataclass(frozen=True)
class Lease:
    """Work leased together: candidates, or module runs of one model to be timed in turns. With `build`, the
    candidates are only built for the target.

    `model_bytes` is the size of the model's constants, 0 if unknown: a worker with a GPU times candidates
    with a working set of this size. `trace_parent` is the W3C traceparent of the worker's spans, empty
    without tracing.
    """

    id: LeaseId
    target: str
    limits: Limits
    expires_after_s: float
    candidates: tuple[Candidate, ...] = ()
    module_runs: tuple[ModuleRun, ...] = ()
    build: bool = False
    trace_parent: str = ""
    model_bytes: int = 0

    def __post_init__(self) -> None:
        if bool(self.candidates) == bool(self.module_runs):
            raise ValueError("a lease is for candidates or for module runs")
        if len(self.module_runs) > MAX_MODULE_RUNS:
            raise ValueError(f"a lease has at most {MAX_MODULE_RUNS} module runs")
        if self.build and not self.candidates:
            raise ValueError("only candidates are leased to be built")
        if self.model_bytes < 0:
            raise ValueError(f"a lease's model_bytes must not be negative, not {self.model_bytes}")
        if not 0 < self.expires_after_s < math.inf:
            raise ValueError(f"a lease's expires_after_s must be positive, not {self.expires_after_s}")


def check_name(what: str, text: str) -> None:
    """Raise ValueError unless the text is 1 to 128 printable characters without spaces."""
    if not 0 < len(text) <= 128 or not text.isprintable() or " " in text:
        raise ValueError(f"{what} must be 1 to 128 printable characters without spaces")

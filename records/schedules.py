"""Records: what was measured of a workload on a device class, and the best of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlalchemy.orm import Session

from search.measurement import Outcome

Source: TypeAlias = Literal["trial", "import"]


@dataclass(frozen=True)
class Record:
    """The newest measurement of one trace. `latency_s`, the median of `run_secs`, is None unless `outcome` is OK."""

    workload_hash: str
    device_class: str
    trace: str
    program: dict[str, Any] | None
    latency_s: float | None
    run_secs: tuple[float, ...]
    outcome: Outcome
    target: str
    source: Source
    created_at: float

    def __post_init__(self) -> None:
        if (self.latency_s is None) == (self.outcome is Outcome.OK):
            raise ValueError("exactly the records that went well have a latency")


def best(session: Session, workload_hash: str, device_class: str) -> Record | None:
    """The fastest record that went well."""
    raise NotImplementedError


def best_many(session: Session, hashes: Collection[str], device_class: str) -> dict[str, Record]:
    """The fastest record of each workload that has one."""
    raise NotImplementedError


def successes(session: Session, device_class: str, hashes: Collection[str] | None = None) -> list[Record]:
    """The records that went well, of all workloads or those given, by workload and then fastest first."""
    raise NotImplementedError


def history(session: Session, device_class: str, limit: int = 20000) -> list[Record]:
    """The newest records of any outcome that have a program, newest first."""
    raise NotImplementedError


def add_imported(session: Session, records: Sequence[Record], now: float) -> int:
    """Store records of other databases, `created_at` now, but none of a trace that has one; how many were new.

    Raises WorkloadNotFound, DeviceClassNotFound.
    """
    raise NotImplementedError

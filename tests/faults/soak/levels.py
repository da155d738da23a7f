"""Sample memory, threads, descriptors, rows and disk usage during a soak, and check that each levels off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import psutil
import redis
from sqlalchemy import func, select, text

from benchmarks.results.figures import Figure, at_most, figure, number
from benchmarks.results.metrics import GROWTH, MEAN_LEVEL
from records.storage.tables import Base
from tests.faults.replicas import DATABASE
from tests.faults.soak.rig import ELDERS, SoakRig

MIB = 1 << 20
# A table that grows by design: a row for each program measured, which the accounts check one by one.
GROWING = "records"


@dataclass(frozen=True)
class Bound:
    """The most growth in the second half: a fraction of the mean, or `least` if that is more. `because` gives
    the reason.
    """

    share: float
    least: float
    unit: str
    because: str


# Of 500 trials and 3,000 calls in the second half, ten kilobytes leaked by each trial would be 5 MiB.
BOUNDS: Mapping[str, Bound] = {
    "memory": Bound(0.03, 4.0, "MiB", "an allocator keeps pages that are half empty"),
    "threads": Bound(0.0, 2.0, "", "pools start threads when they are needed"),
    "descriptors": Bound(0.0, 8.0, "", "pools open connections when they are needed, up to 20"),
    "rows": Bound(0.2, 12.0, "", "there is a row for a model, a session or an improvement now and then"),
    "rows of jobs": Bound(0.2, 150.0, "", "jobs come and go whole, with 48 trials each"),
    "disk": Bound(0.1, 8.0, "MiB", "vacuum frees a page after the rows of a job are gone"),
    "files": Bound(0.0, 6.0, "", "each process has a few temporary ones"),
}

# Tables with many rows for each job.
OF_JOBS = ("trials", "leases", "events")


@dataclass(frozen=True)
class Level:
    """A sampled series. Its `kind` is a key of BOUNDS."""

    name: str
    kind: str
    hours: Sequence[float]
    values: Sequence[float]

    @property
    def bound(self) -> Bound:
        return BOUNDS["rows of jobs" if self.kind == "rows" and self.name in OF_JOBS else self.kind]

    @property
    def second_half(self) -> tuple[np.ndarray, np.ndarray]:
        half = (self.hours[0] + self.hours[-1]) / 2
        kept = [(hour, value) for hour, value in zip(self.hours, self.values, strict=True) if hour >= half]
        return np.array([hour for hour, _ in kept]), np.array([value for _, value in kept])

    @property
    def slope(self) -> float:
        """Growth in a simulated hour of the second half: the median over all pairs of samples."""
        hours, values = self.second_half
        first, second = np.triu_indices(len(hours), k=1)
        return float(np.median((values[second] - values[first]) / (hours[second] - hours[first])))

    @property
    def growth(self) -> float:
        hours, _ = self.second_half
        return self.slope * float(hours[-1] - hours[0])

    @property
    def most(self) -> float:
        return max(self.bound.share * float(np.mean(self.second_half[1])), self.bound.least)

    @property
    def verdict(self) -> str:
        """Describe how the series fails to level off; "" if it levels off."""
        if self.growth <= self.most:
            return ""
        unit = self.bound.unit
        grew = f"{number(self.growth)} {unit}".strip()
        allowed = f"{number(self.most)} {unit}".strip()
        return (
            f"the {self.kind} of {self.name} does not level off: it grew by {grew} in the second half "
            f"({number(self.slope)} in a simulated hour), and {allowed} is allowed"
        )

    def figures(self) -> list[Figure]:
        """Return the mean and the growth in the second half."""
        mean, unit = float(np.mean(self.second_half[1])), self.bound.unit
        note = f"at the end {number(self.values[-1])}; {number(self.slope)} in a simulated hour"
        subject, kind = self.name, self.kind
        return [
            figure(MEAN_LEVEL, mean, unit, subject=subject, condition=kind),
            figure(
                GROWTH,
                self.growth,
                unit,
                subject=subject,
                condition=kind,
                aim=at_most(self.most),
                note=note,
            ),
        ]


class Watch:
    """Takes the samples of a soak."""

    def __init__(self, rig: SoakRig) -> None:
        self._rig = rig
        self._hours: list[float] = []
        self._samples: list[dict[tuple[str, str], float]] = []
        self._processes: dict[str, psutil.Process] = {}

    def sample(self, hour: float) -> None:
        """Take one sample. Raises StorageError or RedisError if a backend is unavailable."""
        found = self._of_processes() | self._of_database() | self._of_redis() | self._of_files()
        self._hours.append(hour)
        self._samples.append(found)

    def levels(self) -> list[Level]:
        keys = dict.fromkeys(key for sample in self._samples for key in sample)
        return [
            Level(name, kind, self._hours, [one.get((name, kind), 0.0) for one in self._samples])
            for name, kind in keys
            if (name, kind) != (GROWING, "rows")
        ]

    def _of_processes(self) -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = {}
        for name in ELDERS:
            running = self._rig.programs[name].process
            assert running is not None, "elders run throughout"
            process = self._processes.setdefault(name, psutil.Process(running.pid))
            with process.oneshot():
                found[name, "memory"] = process.memory_info().rss / MIB
                found[name, "threads"] = float(process.num_threads())
                found[name, "descriptors"] = float(process.num_fds())
        return found

    def _of_database(self) -> dict[tuple[str, str], float]:
        found: dict[tuple[str, str], float] = {}
        with self._rig.database.begin() as session:
            for table in Base.metadata.sorted_tables:
                count = session.scalar(select(func.count()).select_from(table))
                found[table.name, "rows"] = float(count or 0)
            records = f"pg_total_relation_size('{GROWING}')"
            size = session.scalar(text(f"SELECT pg_database_size('{DATABASE}') - {records}"))
            found["PostgreSQL without records", "disk"] = float(size or 0) / MIB
        return found

    def _of_redis(self) -> dict[tuple[str, str], float]:
        with redis.Redis.from_url(self._rig.redis.url) as client:
            return {("Redis", "memory"): client.info("memory")["used_memory"] / MIB}

    def _of_files(self) -> dict[tuple[str, str], float]:
        paths = [path for path in self._rig.scratch.rglob("*") if path.is_file() or path.is_dir()]
        size = 0
        for path in paths:
            try:
                size += path.stat().st_size if path.is_file() else 0
            except OSError:
                continue
        top = len(list(self._rig.scratch.iterdir()))
        return {("temporary files", "files"): float(top), ("temporary files", "disk"): size / MIB}

"""The soak's service: two servers, two schedulers and four workers on PostgreSQL and Redis, with compressed
waits and a separate disk for the database."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from core.device import Device
from tests import services
from tests.faults.environments import Unsupported, small_tmpfs
from tests.faults.links import Links
from tests.faults.process import HOST_CLOCK_VARIABLE, SPEED_UP_VARIABLE
from tests.faults.replicas import ReplicatedRig
from tests.faults.rig import Program, running, step_file
from tests.faults.runner import VARIABLE, Faults
from tests.faults.soak import compression

DISK_BYTES = 640 << 20
TRIAL_S = 0.03
# The device class of each worker; the worker without one builds.
WORKERS = {"worker-1": "soak-a", "worker-2": "soak-a", "worker-3": "soak-b", "worker-4": ""}
# These are never killed, so that growth in them is visible.
ELDERS = ("server-1", "scheduler-1", "worker-1")


@dataclass(kw_only=True)
class SoakRig(ReplicatedRig):
    """`disk` is the folder of the database's disk; None if this machine allows none. `down` names the
    processes that a fault stopped.
    """

    disk: Path | None
    speed_up: float
    workers: dict[str, Program] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.settings = {
            **compression.settings(self.speed_up),
            SPEED_UP_VARIABLE: str(self.speed_up),
            "TMPDIR": str(self.scratch),
        }
        for folder in (self.scratch, self.folder / "notes"):
            folder.mkdir()
            folder.chmod(0o1777)
        super().__post_init__()
        for name, device_class in WORKERS.items():
            self.workers[name] = self.program(
                "worker",
                *(() if device_class else ("--build",)),
                name=name,
                TUNEFARM_WORKER_SERVER=self.fleet(name),
                TUNEFARM_WORKER_NAME=name,
                TUNEFARM_WORKER_THREADS="1",
                TUNEFARM_WORKER_MEMORY_BYTES=str(256 << 20),
                **{VARIABLE: self._faults(device_class or "soak-a").to_json()},
            )

    @property
    def scratch(self) -> Path:
        """The folder for temporary files of all processes."""
        return self.folder / "tmp"

    @property
    def programs(self) -> dict[str, Program]:
        """All processes by name."""
        of_service = (*self.servers, *self.schedulers)
        return {one.log.stem: one for one in of_service} | self.workers

    @property
    def devices(self) -> list[Device]:
        """A device of each class."""
        classes = sorted({name for name in WORKERS.values() if name})
        return [self._faults(name).device for name in classes]

    def start_workers(self) -> None:
        for worker in self.workers.values():
            worker.start()

    def step_host_clock(self, name: str, seconds: float) -> None:
        """Set the own clock of one process ahead, or back by negative seconds."""
        step_file(self.folder / f"clock-{name}", seconds)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.stop()
        super().close()

    def _faults(self, device_class: str) -> Faults:
        return Faults(str(self.folder / "notes"), device_class, nap_s=TRIAL_S)

    def _environment(self, name: str) -> dict[str, str]:
        clock = self.folder / f"clock-{name}"
        clock.write_text("0")
        return super()._environment(name) | {HOST_CLOCK_VARIABLE: str(clock)}


@contextlib.contextmanager
def soak_rig(speed_up: float) -> Iterator[SoakRig]:
    """Yield a rig whose servers and schedulers run. Raises Missing, TimedOut."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tunefarm-soak-", dir="/tmp")))
        folder.chmod(0o711)
        disk: Path | None = folder / "disk"
        try:
            stack.enter_context(small_tmpfs(folder / "disk", DISK_BYTES))
        except Unsupported:
            disk = None
        flags = {"autovacuum_naptime": "1s", "max_wal_size": "64MB", "min_wal_size": "32MB"}
        postgresql = stack.enter_context(services.postgresql(parent=disk or folder, settings=flags))
        redis = stack.enter_context(services.redis_server())
        links = stack.enter_context(contextlib.closing(Links()))
        rig = SoakRig(
            folder,
            replicas=2,
            postgresql=postgresql,
            redis=redis,
            links=links,
            disk=disk,
            speed_up=speed_up,
        )
        stack.enter_context(running(rig))
        yield rig

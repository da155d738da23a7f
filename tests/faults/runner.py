"""A runner with quick candidates. One of them misbehaves as the variable `TVM_FAULTS` says.

The worker's child imports it by name. A folder of notes stores which candidate was chosen and how often it
has misbehaved, for the next child and the next worker.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from compiler.packaging.archive import pack
from core.device import Device
from core.measurement import Measurement, Outcome
from tests.devices import DEVICE
from tests.integration.worker.fault_runner import FaultRunner, lock
from tests.shared_libraries import shared_library
from worker.runner.interface import BuildRequest, Exported, Notify, Phase, Platforms

VARIABLE = "TVM_FAULTS"  # a worker passes TVM's variables on to its child
IMPOSSIBLE_S = 1e-12
LIBRARY = shared_library()


@dataclass(frozen=True)
class Faults:
    """The chosen candidate `does` an action of FaultyRunner in a `phase`, once or `always`.

    Every candidate takes `nap_s` to run, or to build on a worker that only builds. `device_class` gives the
    devices of one run their own class. `notes` is a folder that every user may write to.
    """

    notes: str
    device_class: str
    does: str = "ok"
    phase: str = Phase.RUN.value
    always: bool = False
    nap_s: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def device(self) -> Device:
        return replace(DEVICE, toolchain=self.device_class)


class FaultyRunner(FaultRunner):
    """Has the actions of FaultRunner, and some more."""

    def __init__(self, threads: int, without: Sequence[str]) -> None:
        super().__init__(threads, without)
        self._faults = Faults(**json.loads(os.environ[VARIABLE]))
        self._notes = Path(self._faults.notes)
        self._requests: dict[int, BuildRequest] = {}

    def check(self) -> Device:
        return self._faults.device

    def build(self, requests: Mapping[int, BuildRequest], begun: Notify, ended: Notify) -> list[int]:
        for number, request in requests.items():
            begun(number)
            self._requests[number] = request
            self._misbehave(request, Phase.BUILD)
            ended(number)
        return []

    def run(self, number: int, best_s: float | None) -> Measurement:
        request = self._requests.pop(number)
        time.sleep(self._faults.nap_s)
        return self._misbehave(request, Phase.RUN) or Measurement(
            Outcome.OK, (run_s(request.trace),) * 3, 0.01
        )

    def platforms(self) -> Platforms:
        return Platforms((self._faults.device.arch,))

    def export(self, number: int) -> Exported | Measurement:
        request = self._requests.pop(number)
        time.sleep(self._faults.nap_s)
        return Exported(
            pack([("candidate.so", LIBRARY + request.trace.encode()), ("manifest.json", b"{}")]),
            self._faults.nap_s,
        )

    def measure_module(self, artifact: IO[bytes], compare: bool) -> Measurement:
        return Measurement(Outcome.OK, (0.01, 0.01, 0.01))

    def measure_onnx(self, model: IO[bytes], shapes: str) -> Measurement:
        return Measurement(Outcome.OK, (0.013, 0.013, 0.013))

    def _misbehave(self, request: BuildRequest, phase: Phase) -> Measurement | None:
        """Act if the phase and the candidate are the chosen ones; the first candidate that asks is chosen."""
        if self._faults.phase != phase.value:
            return None
        chosen = self._notes / "chosen"
        if not chosen.exists():
            chosen.write_text(digest(request.trace))
        done = len(list(self._notes.glob("did-*")))
        if chosen.read_text() != digest(request.trace) or (done and not self._faults.always):
            return None
        (self._notes / f"did-{done}").touch()
        return self._do(self._faults.does, None)

    def do_spin(self, request: BuildRequest | None) -> None:
        while True:
            pass

    def do_fill_memory(self, request: BuildRequest | None) -> None:
        kept = []
        while True:
            kept.append(bytearray(32 << 20))

    def do_lie(self, request: BuildRequest | None) -> Measurement:
        return Measurement(Outcome.OK, (IMPOSSIBLE_S,) * 3)

    def do_fork(self, request: BuildRequest | None) -> None:
        """Leave processes behind, each in its own session and with a lock on a note, and exit."""
        for number in range(8):
            if os.fork() == 0:
                os.setsid()
                lock(str(self._notes / f"left-{number}"))
                time.sleep(3600)
        while len([path for path in self._notes.glob("left-*") if path.read_text()]) < 8:
            time.sleep(0.01)
        os._exit(3)


def digest(trace: str) -> str:
    return hashlib.sha256(trace.encode()).hexdigest()


def run_s(trace: str) -> float:
    """Return the seconds that every device says a program takes."""
    return 1e-3 * (1 + zlib.crc32(trace.encode()) % 1000 / 1000)

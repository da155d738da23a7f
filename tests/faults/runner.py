"""A runner whose candidates are quick, and one of which misbehaves as the variable `TVM_FAULTS` says.

The worker's child imports it by name. A folder of notes holds which candidate was chosen and how often it has
misbehaved, so that the next child and the next worker know it too.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import struct
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from compiler.packaging.archive import pack
from core.device import Device
from core.measurement import Measurement, Outcome
from core.profile import Profile
from worker.runner.interface import BuildRequest, Exported, Machines, Notify, Phase

VARIABLE = "TVM_FAULTS"  # a worker passes TVM's variables on to its child
DEVICE = Device(
    name="fault runner",
    triple="x86_64-unknown-linux-gnu",
    mcpu="x86-64",
    features=(),
    cores=2,
    vector_bytes=16,
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    l3_bytes=8 << 20,
    toolchain="none",
    target='{"kind":"llvm"}',
)
IMPOSSIBLE_S = 1e-12
# The part of a shared library that the service reads: an ELF header for x86-64.
LIBRARY = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HH", 3, 62)


@dataclass(frozen=True)
class Faults:
    """What the chosen candidate `does` in a `phase`, once or `always`.

    Every candidate takes `nap_s` to run, or to build on a worker that only builds. `device_class` makes
    the devices of one run a class of their own. `notes` is a folder that every user may write to.
    """

    notes: str
    device_class: str
    does: str = "nothing"
    phase: str = Phase.RUN.value
    always: bool = False
    nap_s: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def device(self) -> Device:
        return replace(DEVICE, toolchain=self.device_class)


class FaultyRunner:
    def __init__(self, threads: int, without: Sequence[str]) -> None:
        self._faults = Faults(**json.loads(os.environ[VARIABLE]))
        self._requests: dict[int, BuildRequest] = {}

    def check(self) -> Device:
        return self._faults.device

    def calibrate(self, budget_s: float) -> Profile:
        return DEVICE.speeds

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
        return self._misbehave(request, Phase.RUN) or _plausible(request)

    def machines(self) -> Machines:
        return Machines((self._faults.device.machine,))

    def export(self, number: int) -> Exported | Measurement:
        request = self._requests.pop(number)
        time.sleep(self._faults.nap_s)
        return Exported(pack([("candidate.so", LIBRARY + request.trace.encode())]), self._faults.nap_s)

    def measure_module(self, artifact: bytes, compare: bool) -> Measurement:
        return Measurement(Outcome.OK, (0.01, 0.01, 0.01))

    def _misbehave(self, request: BuildRequest, phase: Phase) -> Measurement | None:
        notes = Path(self._faults.notes)
        if self._faults.phase != phase.value or not _is_chosen(request, notes):
            return None
        done = len(list(notes.glob("did-*")))
        if done and not self._faults.always:
            return None
        (notes / f"did-{done}").touch()
        return DOES[self._faults.does](notes)


def digest(trace: str) -> str:
    return hashlib.sha256(trace.encode()).hexdigest()


def _is_chosen(request: BuildRequest, notes: Path) -> bool:
    """Whether this candidate misbehaves: the first one that asks is chosen."""
    chosen = notes / "chosen"
    if not chosen.exists():
        chosen.write_text(digest(request.trace))
    return chosen.read_text() == digest(request.trace)


def _plausible(request: BuildRequest) -> Measurement:
    """Return a time that depends only on the program."""
    secs = 1e-3 * (1 + zlib.crc32(request.trace.encode()) % 1000 / 1000)
    return Measurement(Outcome.OK, (secs,) * 3, 0.01)


# Ways to misbehave


def _nothing(notes: Path) -> None: ...


def _hang(notes: Path) -> None:
    time.sleep(3600)


def _spin(notes: Path) -> None:
    while True:
        pass


def _fill_memory(notes: Path) -> None:
    kept = []
    while True:
        kept.append(bytearray(32 << 20))


def _segfault(notes: Path) -> None:
    ctypes.string_at(0)


def _print(notes: Path) -> None:
    os.write(1, b"\xff" * 100_000)
    print("x" * 100_000, flush=True)


def _fork(notes: Path) -> None:
    """Leave processes in sessions of their own behind, note their ids, and exit."""
    for number in range(8):
        if os.fork() == 0:
            os.setsid()
            # The id outside of any PID namespace: /proc is that of the machine.
            pid = os.readlink("/proc/self") if sys.platform == "linux" else str(os.getpid())
            (notes / f"left-{number}").write_text(pid)
            time.sleep(3600)
    while len([path for path in notes.glob("left-*") if path.read_text()]) < 8:
        time.sleep(0.01)
    os._exit(3)


def _wrong(notes: Path) -> Measurement:
    return Measurement(Outcome.WRONG_RESULT, error="output 0 differs from the reference")


def _lie(notes: Path) -> Measurement:
    return Measurement(Outcome.OK, (IMPOSSIBLE_S,) * 3)


DOES: dict[str, Callable[[Path], Measurement | None]] = {
    "nothing": _nothing,
    "hang": _hang,
    "spin": _spin,
    "fill memory": _fill_memory,
    "segfault": _segfault,
    "print": _print,
    "fork": _fork,
    "wrong": _wrong,
    "lie": _lie,
}

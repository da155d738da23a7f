"""What workers measure with here: every candidate is quick, and one of them does what `TVM_FAULTS` says.

The child imports it by name. Which candidate it is, and what it has done, stands in a folder of notes, so
that the next child, and the next worker, know it too.
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
    name="a device of no worth",
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
# No more of a shared library than the service looks at.
LIBRARY = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack("<HH", 3, 62)


@dataclass(frozen=True)
class Faults:
    """What the chosen candidate `does` in a `phase`: once, or `always`; and how long every candidate takes
    to run, and to build where a worker only builds.

    `classed` makes the devices of a play a class of their own. `notes` is a folder that anyone may write to.
    """

    notes: str
    classed: str
    does: str = "nothing"
    phase: str = Phase.RUN.value
    always: bool = False
    nap_s: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def device(self) -> Device:
        return replace(DEVICE, toolchain=self.classed)


class FaultyBench:
    def __init__(self, threads: int, without: Sequence[str]) -> None:
        self._faults = Faults(**json.loads(os.environ[VARIABLE]))
        self._subjects: dict[int, BuildRequest] = {}

    def check(self) -> Device:
        return self._faults.device

    def calibrate(self, budget_s: float) -> Profile:
        return DEVICE.speeds

    def build(self, subjects: Mapping[int, BuildRequest], begun: Notify, ended: Notify) -> list[int]:
        for number, subject in subjects.items():
            begun(number)
            self._subjects[number] = subject
            self._turn(subject, Phase.BUILD)
            ended(number)
        return []

    def run(self, number: int, best_s: float | None) -> Measurement:
        subject = self._subjects.pop(number)
        time.sleep(self._faults.nap_s)
        return self._turn(subject, Phase.RUN) or _fine(subject)

    def machines(self) -> Machines:
        return Machines((self._faults.device.machine,))

    def export(self, number: int) -> Exported | Measurement:
        subject = self._subjects.pop(number)
        time.sleep(self._faults.nap_s)
        return Exported(pack([("candidate.so", LIBRARY + subject.trace.encode())]), self._faults.nap_s)

    def measure_module(self, artifact: bytes, compare: bool) -> Measurement:
        return Measurement(Outcome.OK, (0.01, 0.01, 0.01))

    def _turn(self, subject: BuildRequest, phase: Phase) -> Measurement | None:
        notes = Path(self._faults.notes)
        if self._faults.phase != phase.value or not _is_chosen(subject, notes):
            return None
        done = len(list(notes.glob("did-*")))
        if done and not self._faults.always:
            return None
        (notes / f"did-{done}").touch()
        return DOES[self._faults.does](notes)


def digest(trace: str) -> str:
    return hashlib.sha256(trace.encode()).hexdigest()


def _is_chosen(subject: BuildRequest, notes: Path) -> bool:
    """The first that asks is."""
    chosen = notes / "chosen"
    if not chosen.exists():
        chosen.write_text(digest(subject.trace))
    return chosen.read_text() == digest(subject.trace)


def _fine(subject: BuildRequest) -> Measurement:
    """The same program always takes the same time."""
    secs = 1e-3 * (1 + zlib.crc32(subject.trace.encode()) % 1000 / 1000)
    return Measurement(Outcome.OK, (secs,) * 3, 0.01)


# What a candidate may do


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
    """Leaves processes of other sessions behind, whose ids are in a note, and ends."""
    for number in range(8):
        if os.fork() == 0:
            os.setsid()
            # As seen from the machine, whatever namespace this is in.
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

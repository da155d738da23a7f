"""A runner whose traces name faults: real ones, in a real child process.

A trace is "FAULT" or "PHASE FAULT", and may go on with any text that makes it unique. PHASES has the phases.
A measurement without a fault has a number that names the child for its build time. The child imports this
module by name. It shares the folder of temporary files with the tests, unlike a deployed worker's.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO

from core.device import Device
from core.measurement import Footprint, Measurement, Outcome
from core.profile import Profile
from tests.devices import DEVICE
from worker.runner.interface import BuildRequest, Calls, Exported, Notify, Platforms

KEPT: list[bytearray] = []
# Names this process: it can't know its process id outside of its PID namespace.
CHILD = float(random.getrandbits(48))
LOCKED: list[int] = []
# Faults while the energy of calls is measured; "two calls" is none.
ENERGY_FAULTS = ("two calls", "lack of memory", "wrong clock")
# Building, loading a library that was built elsewhere, measuring; "run" is measuring and exporting.
PHASES = ("build", "load", "measure", "run")


class FaultRunner:
    def __init__(self, threads: int, without: Sequence[str]) -> None:
        self._builders = ThreadPoolExecutor(threads)
        all_there = threading.Barrier(threads)
        list(self._builders.map(lambda _: all_there.wait(), range(threads)))
        self._built: dict[int, tuple[BuildRequest, Measurement | None]] = {}
        self._building = 0
        self._planted = False

    def check(self) -> Device:
        broken = os.environ.get("TVM_FAULT_UNTIL")
        if broken is not None and not Path(broken).exists():
            how = os.environ.get("TVM_FAULT_HOW", "exit")
            if how == "import":
                raise ImportError("libtvm.so: cannot open shared object file")
            if how.startswith("SIG"):
                os.kill(os.getpid(), signal.Signals[how])
            print("the probe computed nonsense", file=sys.stderr)
            sys.exit(7)
        return DEVICE

    def calibrate(self, budget_s: float) -> Profile:
        """Count the calibrations in a file; die when the file says "die" at first."""
        notes = os.environ.get("TVM_FAULT_CALIBRATIONS")
        if notes is None:
            return DEVICE.speeds
        said = Path(notes).read_text()
        if said == "die":
            os.kill(os.getpid(), signal.SIGILL)
        Path(notes).write_text(f"{said}.")
        return replace(DEVICE.speeds, hertz=1e9 + len(said))

    def build(self, requests: Mapping[int, BuildRequest], begun: Notify, ended: Notify) -> list[int]:
        self._building = len(requests)

        def build(number: int) -> bool:
            begun(number)
            when, fault = phase_and_fault(requests[number])
            phases = ("build",) if requests[number].library is None else ("build", "load")
            refusal = self._do(fault, requests[number]) if when in phases else None
            self._built[number] = requests[number], refusal
            ended(number)
            return refusal is not None

        refusals = self._builders.map(build, requests)
        return [number for number, refused in zip(requests, refusals, strict=True) if refused]

    def platforms(self) -> Platforms:
        names = os.environ.get("TVM_FAULT_PLATFORMS", "x86_64 aarch64").split()
        return Platforms(tuple(names), () if "aarch64" in names else ("no linker: install one",))

    def export(self, number: int) -> Exported | Measurement:
        request, refusal = self._built.pop(number)
        assert request.export
        when, fault = phase_and_fault(request)
        failure = refusal or (self._do(fault, request) if when == "run" else None)
        return failure or Exported(f"library of {request.trace}".encode(), 0.5)

    def run(self, number: int, best_s: float | None) -> Measurement:
        request, refusal = self._built.pop(number)
        if refusal is not None:
            return refusal
        when, fault = phase_and_fault(request)
        if fault == "best":
            return Measurement(Outcome.RUN_ERROR, error=str(best_s))
        return (self._do(fault, request) if when in ("run", "measure") else None) or fine()

    def measure_module(self, artifact: IO[bytes], compare: bool) -> Measurement:
        fault = artifact.read().decode()
        if fault == "say whether it is compared":
            return reported(f"compared: {compare}")
        if fault in ENERGY_FAULTS:
            return replace(fine(), footprint=Footprint(0.01, 1000))
        return self._do(fault, None) or fine()

    def call_module(self, artifact: IO[bytes], seconds: float) -> Calls | Measurement:
        fault = artifact.read().decode()
        if fault == "lack of memory":
            return reported("std::bad_alloc")
        if fault == "wrong clock":
            return Calls(1.0, 2.0, 2)
        began_s = time.monotonic()
        time.sleep(0.1)
        return Calls(began_s, time.monotonic(), 2)

    def measure_onnx(self, model: IO[bytes], shapes: str) -> Measurement:
        fault = model.read().decode()
        return reported(f"shapes: {shapes}") if fault == "say the shapes" else self._do(fault, None) or fine()

    def _do(self, fault: str, request: BuildRequest | None) -> Measurement | None:
        action: Callable[[BuildRequest | None], Measurement | None] = getattr(self, f"do_{fault}")
        return action(request)

    def do_ok(self, request: BuildRequest | None) -> None: ...

    def do_wrong(self, request: BuildRequest | None) -> Measurement:
        return Measurement(Outcome.WRONG_RESULT, error="output 0 differs")

    def do_refuse(self, request: BuildRequest | None) -> Measurement:
        return Measurement(Outcome.BUILD_ERROR, error="no such loop")

    def do_library(self, request: BuildRequest | None) -> Measurement:
        """Report the contents of the library that the request names."""
        assert request is not None
        path = Path(str(request.library))
        return reported(path.read_text() if path.exists() else f"{path} is gone")

    def do_crowded(self, request: BuildRequest | None) -> Measurement | None:
        """Fail for lack of memory while another candidate is built."""
        return Measurement(Outcome.BUILD_ERROR, error="bad_alloc") if self._building > 1 else None

    def do_plant(self, request: BuildRequest | None) -> None:
        """Run well, and plant a fault that kills the child at the next `trip`."""
        self._planted = True

    def do_trip(self, request: BuildRequest | None) -> None:
        if self._planted:
            os._exit(5)

    def do_kill(self, request: BuildRequest | None) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_nap(self, request: BuildRequest | None) -> None:
        time.sleep(0.3)

    def do_hang_once(self, request: BuildRequest | None) -> None:
        """Hang, unless the file that the workload names exists already."""
        assert request is not None
        if not Path(request.module_json).exists():
            self.do_hang(request)

    def do_segfault(self, request: BuildRequest | None) -> None:
        print("about to follow a bad pointer", file=sys.stderr, flush=True)
        ctypes.string_at(0)

    def do_exit(self, request: BuildRequest | None) -> None:
        os._exit(3)

    def do_hang(self, request: BuildRequest | None) -> None:
        """Make the file that the workload names, if it names one, then hang."""
        print("spinning", file=sys.stderr, flush=True)
        if request is not None and request.module_json:
            Path(request.module_json).touch()
        time.sleep(3600)

    def do_wait_for_file(self, request: BuildRequest | None) -> None:
        assert request is not None
        while not Path(request.module_json).exists():
            time.sleep(0.01)

    def do_touch(self, request: BuildRequest | None) -> None:
        """Make the file that the workload names."""
        assert request is not None
        Path(request.module_json).touch()

    def do_spawn(self, request: BuildRequest | None) -> None:
        """Start a process, which locks the file that the workload names while it lives, then hang."""
        assert request is not None
        program = "import sys, time, fault_runner as runner; runner.lock(sys.argv[1]); time.sleep(3600)"
        subprocess.Popen([sys.executable, "-c", program, request.module_json])
        time.sleep(3600)

    def do_allocate(self, request: BuildRequest | None) -> None:
        KEPT.append(bytearray(1 << 30))

    def do_grow(self, request: BuildRequest | None) -> None:
        KEPT.append(bytearray(160 << 20))

    def do_raise(self, request: BuildRequest | None) -> None:
        raise KeyError("a bug in the runner")

    def do_print(self, request: BuildRequest | None) -> None:
        print("x" * 100_000, flush=True)
        os.write(1, b"\xff" * 100_000)
        subprocess.run([sys.executable, "-c", "print('from a child of the child')"], check=True)

    def do_read(self, request: BuildRequest | None) -> None:
        """Read from standard input: that must not swallow requests."""
        assert sys.stdin.read() == ""

    def do_scribble(self, request: BuildRequest | None) -> None:
        """Write into every pipe there is, as a wild system call may do."""
        for number in range(3, 32):
            try:
                os.write(number, b"\xff" * 64)
            except OSError:
                continue

    def do_flood(self, request: BuildRequest | None) -> Measurement:
        """Report as many repeats as make a message of 72 MB."""
        return Measurement(Outcome.OK, (0.00125,) * 9_000_000)

    def do_reply(self, request: BuildRequest | None) -> None:
        """Reply to the agent with the workload's bytes, repeated as often as its first word says."""
        assert request is not None
        times, _, text = request.module_json.partition(" ")
        body = bytes.fromhex(text) * int(times)
        for number in range(3, 64):
            with contextlib.suppress(OSError):
                is_pipe = stat.S_ISFIFO(os.fstat(number).st_mode)
                if is_pipe and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_WRONLY:
                    with os.fdopen(os.dup(number), "wb") as pipe:
                        pipe.write(len(body).to_bytes(4, "big") + body)

    def do_environment(self, request: BuildRequest | None) -> Measurement:
        threads = ("TVM_NUM_THREADS", "TVM_BIND_THREADS", "TVM_THREAD_POOL_SPIN_COUNT")
        wanted = (*threads, "TUNEFARM_TOKEN", "AWS_SECRET_ACCESS_KEY")
        return Measurement(Outcome.RUN_ERROR, error=" ".join(str(os.environ.get(name)) for name in wanted))

    def do_limits(self, request: BuildRequest | None) -> Measurement:
        limits = Path("/proc/self/limits").read_text().splitlines()
        return Measurement(Outcome.RUN_ERROR, error="\n".join(limits))

    def do_status(self, request: BuildRequest | None) -> Measurement:
        return reported(Path("/proc/self/status").read_text())

    def do_connect(self, request: BuildRequest | None) -> Measurement:
        """Connect to the port of this machine that the workload names."""
        assert request is not None
        family = request.trace.split()[-1]
        local = {"AF_INET": "127.0.0.1", "AF_INET6": "::1"}[family]
        try:
            with socket.socket(getattr(socket, family)) as opened:
                opened.connect((local, int(request.module_json)))
        except OSError as error:
            return reported(str(error))
        return reported("connected")

    def do_write_scratch(self, request: BuildRequest | None) -> Measurement:
        Path(os.environ["TMPDIR"], "note").write_text("here")
        return reported("written")

    def do_processes(self, request: BuildRequest | None) -> Measurement:
        """Fork until the system call fails."""
        begun: list[int] = []
        try:
            while len(begun) < 20_000:
                begun.append(os.fork())
                if begun[-1] == 0:
                    signal.pause()
        except OSError as error:
            return reported(f"{error} after {len(begun)}")
        finally:
            for pid in begun:
                os.kill(pid, signal.SIGKILL)
        return reported(f"{len(begun)} processes")

    def do_files(self, request: BuildRequest | None) -> Measurement:
        opened: list[int] = []
        try:
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return reported(str(len(opened)))
        finally:
            for number in opened:
                os.close(number)

    def do_escape(self, request: BuildRequest | None) -> None:
        """Leave a process in its own session, which locks the file that the workload names."""
        assert request is not None
        note = Path(request.module_json)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                lock(str(note))
                time.sleep(3600)
            os._exit(0)
        while not note.exists() or not note.read_text():
            time.sleep(0.01)

    def do_escape_and_hang(self, request: BuildRequest | None) -> None:
        self.do_escape(request)
        time.sleep(3600)

    def do_signal_agent(self, request: BuildRequest | None) -> Measurement:
        assert request is not None
        try:
            os.kill(int(request.module_json), 0)
        except OSError as error:
            return reported(str(error))
        return reported("signalled")

    def do_read_agent(self, request: BuildRequest | None) -> Measurement:
        assert request is not None
        try:
            return reported(Path(f"/proc/{request.module_json}/environ").read_bytes().hex())
        except OSError as error:
            return reported(str(error))

    def do_look(self, request: BuildRequest | None) -> Measurement:
        """Report whether each path that the workload names exists, is readable and is writable."""
        assert request is not None
        found = []
        for name in request.module_json.split():
            path = Path(name)
            can = "seen" if os.path.lexists(path) else ""
            with contextlib.suppress(OSError):
                found_there = os.listdir(path) if path.is_dir() else path.read_bytes()
                can += " read" if found_there else ""
            with contextlib.suppress(OSError):
                (path / "planted" if path.is_dir() else path).open("ab").close()
                can += " written"
            found.append(f"{name}: {can.strip()}")
        return reported("\n".join(found))

    def do_ask(self, request: BuildRequest | None) -> Measurement:
        """Connect to the socket of this machine that the workload names."""
        assert request is not None
        with socket.socket(socket.AF_UNIX) as opened:
            try:
                opened.connect(request.module_json)
            except OSError as error:
                return reported(str(error))
        return reported("connected")

    def do_look_through(self, request: BuildRequest | None) -> Measurement:
        """Report what the file that the workload names holds in any process's root."""
        assert request is not None
        found = []
        for process in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{process}/root{request.module_json}").read_text())
        return reported(" ".join(found))

    def do_open(self, request: BuildRequest | None) -> Measurement:
        """Report which of the files that the workload names can be read and written."""
        assert request is not None
        opened = []
        for name in request.module_json.split():
            try:
                os.close(os.open(name, os.O_RDWR))
            except OSError:
                continue
            opened.append(name)
        return reported(" ".join(opened))

    def do_leave_file(self, request: BuildRequest | None) -> Measurement:
        path = Path(os.environ["TMPDIR"]) / "left"
        path.write_text("something large")
        return Measurement(Outcome.WRONG_RESULT, error=str(path))


def phase_and_fault(request: BuildRequest) -> tuple[str, str]:
    """Return the phase in which a candidate misbehaves, and its fault."""
    first, *rest = request.trace.split()
    return (first, rest[0]) if first in PHASES else ("run", first)


def fine() -> Measurement:
    return Measurement(Outcome.OK, (0.001,), CHILD)


def reported(text: str) -> Measurement:
    return Measurement(Outcome.RUN_ERROR, error=text)


def lock(file: str) -> None:
    """Lock a file for as long as this process lives, then write to it."""
    opened = os.open(file, os.O_WRONLY | os.O_CREAT)
    fcntl.lockf(opened, fcntl.LOCK_EX)
    os.write(opened, b"locked")
    LOCKED.append(opened)


class LyingRunner(FaultRunner):
    """Reports a candidate that was not requested."""

    def build(self, requests: Mapping[int, BuildRequest], begun: Notify, ended: Notify) -> list[int]:
        begun(min(requests) + 1000)
        return super().build(requests, begun, ended)


class MuteRunner(FaultRunner):
    """Never finishes its check."""

    def check(self) -> Device:
        time.sleep(3600)
        return DEVICE

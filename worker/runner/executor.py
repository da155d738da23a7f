"""Build and measure candidates in a child process. Replace a child that can't be trusted any more."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import platform
import shutil
import signal
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import psutil

from core.device import Device, arch_of
from core.lease import Limits
from core.measurement import Measurement, Outcome
from core.profile import Profile
from proto import child_pb2 as pb
from proto.convert import clean_text
from sandbox.cache_seed import CACHE_FOLDER, ZIG_CACHE, CacheSeed, seed_name
from sandbox.environment import allowed_variables
from sandbox.kinds import BUILD, MEASURE, MEASURE_GPU, ChildKind
from sandbox.privileges import NOBODY
from system import tracing
from system.errors import SettingsError
from system.packages import python_path
from worker.runner import child_messages
from worker.runner.child_process import ChildDied, ChildProcess
from worker.runner.child_protocol import BuildCall, UnaryCall
from worker.runner.file_transfer import FileTransfer
from worker.runner.frames import MAX_REPLY_BYTES, FrameError
from worker.runner.interface import BuildRequest, Calls, Exported, Inferred, Phase
from worker.runner.start_failure import ChildStartError, died, start_failure, timed_out

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

CPU_RUNNER = "worker.runner.compiler_runner:CompilerRunner"
GPU_RUNNER = "worker.runner.compiler_runner:GpuRunner"
# The out-of-memory errors of C++, Python and TVM.
OUT_OF_MEMORY = ("bad_alloc", "MemoryError", "Cannot allocate memory")
# Outcomes after which the child is replaced: a wrong candidate may have written anywhere, and after most CUDA
# errors all further calls fail.
RESTART_OUTCOMES = frozenset(
    {
        *(Outcome.WRONG_RESULT, Outcome.OUT_OF_MEMORY, Outcome.ILLEGAL_ACCESS),
        *(Outcome.LAUNCH_ERROR, Outcome.DEVICE_LOST),
    }
)
# The limit of CPU time on each core, in multiples of the time limit.
CPU_SLACK = 2.0
# Calibration begins no measurement after this time. The last measurement has the time limit of a child's
# start, because both compile.
CALIBRATION_S = 20.0


class NoPlatformError(Exception):
    """This machine can't export candidates. The message says why, or what to do."""


@dataclass(frozen=True)
class ChildConfig:
    """Configuration of children. `runner` is the MODULE:NAME of a `worker.runner.interface.RunnerFactory`.

    Children don't use the instruction sets in `without`. If the agent is root, they run as `user`. A child
    that measures a `gpu` sees the device nodes of GPUs. A child that `builds` exports candidates. It fails to
    start if it can't export for any machine or, with `gpu`, for GPUs of this machine. Children see only the
    files that they need, and may write those in `writable`. With `require_sandbox`, a child whose sandbox has
    gaps isn't used.
    """

    threads: int
    runner: str = CPU_RUNNER
    start_timeout_s: float = 120.0
    user: str = NOBODY
    builds: bool = False
    gpu: bool = False
    without: tuple[str, ...] = ()
    writable: tuple[Path, ...] = ()
    require_sandbox: bool = False

    @property
    def kind(self) -> ChildKind:
        if self.builds:
            return BUILD
        return MEASURE_GPU if self.gpu else MEASURE


class Executor:
    """Owns the child, and runs one call at a time. A candidate's failures don't raise exceptions here.

    Calls that need a child start one, and raise the exceptions of `start`. A cancelled call kills the child
    with its candidate.
    """

    def __init__(self, config: ChildConfig, environment: Mapping[str, str]) -> None:
        self._config = config
        self._environment = environment
        self._child: ChildProcess | None = None
        self._scratch: Path | None = None
        self._transfer: FileTransfer | None = None
        self._sandbox_gaps: tuple[str, ...] = ()
        self._builds_for: tuple[str, ...] = ()
        self._numbers = itertools.count()
        self._built: dict[BuildRequest, int] = {}  # built candidates of the current child, with their numbers
        # Failures of candidates that can't be built even alone.
        self._failed: dict[BuildRequest, Measurement] = {}
        self._has_run = False  # whether a candidate has run in the current child
        self._seed: CacheSeed | None = None
        if config.builds:
            kept = environment.get(ZIG_CACHE)
            folder = Path(kept or tempfile.mkdtemp(prefix="tunefarm-linkers-"))
            if not kept:
                weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._seed = CacheSeed(folder / seed_name("builder"))

    @property
    def child_pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def sandbox_gaps(self) -> tuple[str, ...]:
        """Sentences about the restrictions that the last child's sandbox lacks."""
        return self._sandbox_gaps

    @property
    def builds_for(self) -> tuple[str, ...]:
        """The platforms that the last child can export candidates for."""
        return self._builds_for

    async def start(self) -> Device:
        """Start a new child. Once it has passed its self-check, return the device that it detects.

        Raises ChildStartError, and SettingsError if a retry wouldn't help.
        """
        await self.close()
        try:
            self._scratch = Path(tempfile.mkdtemp(prefix="tunefarm-child-"))
            self._transfer = FileTransfer(self._config.user)
            if self._seed is not None:
                await asyncio.to_thread(self._seed.copy_to, self._scratch / CACHE_FOLDER)
            self._child = await self._start_process(self._scratch, self._transfer.folder)
            async with asyncio.timeout(self._config.start_timeout_s):
                device = self._accept(await self._child.receive())
            if self._seed is not None:
                # Its check has filled the cache, and it has run no candidate yet.
                await asyncio.to_thread(self._seed.fill_from, self._scratch / CACHE_FOLDER)
            return device
        except (OSError, ChildDied, FrameError, NoPlatformError) as error:  # TimeoutError is an OSError
            raise await self._start_error(error) from error
        except (asyncio.CancelledError, SettingsError):
            await self.close()
            raise

    async def measure(
        self,
        request: BuildRequest,
        limits: Limits,
        ahead: Sequence[BuildRequest] = (),
        best_s: float | None = None,
    ) -> Measurement:
        """Build, verify and time a candidate. `best_s` is the best known latency of its workload.

        The candidates `ahead` are measured next. They are built now, together with this one, so that nothing
        is built while a candidate is timed.
        """
        failure = await self._prepare(request, limits, ahead)
        if failure is not None:
            return failure
        run = pb.RunCandidate(number=self._built.pop(request), best_s=best_s)
        return await self._run(
            pb.ChildRequest(run=run), child_messages.measurement_of, limits.run_timeout_s, limits.memory_bytes
        )

    async def export(
        self, request: BuildRequest, limits: Limits, ahead: Sequence[BuildRequest] = ()
    ) -> Exported | Measurement:
        """Build a candidate for another machine, together with those `ahead`, as `measure` does."""
        failure = await self._prepare(request, limits, ahead)
        if failure is not None:
            return failure
        return await self._call(
            Phase.BUILD,
            pb.ChildRequest(export=self._built.pop(request)),
            child_messages.export_of,
            limits.build_timeout_s,
            limits.memory_bytes,
            child_messages.MAX_EXPORT_REPLY_BYTES,
        )

    async def measure_module(self, artifact: Path, limits: Limits, compare: bool) -> Measurement:
        """Time the packed module in a file for one turn; see `worker.runner.interface.Runner`."""

        def request(path: str) -> pb.ChildRequest:
            return pb.ChildRequest(measure_module=pb.MeasureModule(path=path, compare=compare))

        measured = await self._run_on_file(request, artifact, limits, child_messages.measurement_of)
        return _explain_memory(measured, limits.memory_bytes)

    async def call_module(self, artifact: Path, limits: Limits, seconds: float) -> Calls | Measurement:
        """Call the packed module in a file for some seconds; see `worker.runner.interface.Runner`."""

        def request(path: str) -> pb.ChildRequest:
            return pb.ChildRequest(call_module=pb.CallModule(path=path, seconds=seconds))

        return await self._run_on_file(request, artifact, limits, child_messages.calls_of)

    async def measure_onnx(self, model: Path, limits: Limits, shapes: str) -> Measurement:
        """Time an ONNX model in ONNX Runtime for one turn; see `worker.runner.interface.Runner`."""

        def request(path: str) -> pb.ChildRequest:
            return pb.ChildRequest(measure_onnx=pb.MeasureOnnx(path=path, shapes=shapes))

        return await self._run_on_file(request, model, limits, child_messages.measurement_of)

    async def infer(self, packed: Path, limits: Limits) -> Inferred | Measurement:
        """Call the packed module in a file with its inputs; see `worker.runner.interface.Runner`."""
        most = child_messages.MAX_OUTPUTS_REPLY_BYTES

        def request(path: str) -> pb.ChildRequest:
            return pb.ChildRequest(infer_path=path)

        return await self._run_on_file(request, packed, limits, child_messages.inferred_of, most)

    async def calibrate(self, memory_bytes: int) -> Profile | None:
        """Measure the device's speeds. If that fails, log the reason and return None.

        The device has passed its self-check, so it can work without a profile. An earlier candidate could
        fake the speeds, so they are measured in a child that has run no candidate.
        """
        if self._has_run:
            await self.close()
        profile = await self._call(
            Phase.CALIBRATION,
            pb.ChildRequest(calibrate_budget_s=CALIBRATION_S),
            child_messages.profile_of,
            CALIBRATION_S + self._config.start_timeout_s,
            memory_bytes,
        )
        if isinstance(profile, Profile):
            return profile
        _log.error(
            "this device can't be calibrated, so an ordinary device's speeds are assumed: %s", profile.error
        )
        return None

    async def close(self) -> None:
        """Kill the child, if there is one, and remove its files."""
        child, self._child = self._child, None
        scratch, self._scratch = self._scratch, None
        transfer, self._transfer = self._transfer, None
        self._built.clear()
        self._has_run = False
        if child is not None:
            await child.kill()
        # In a thread, because deleting a child's files may take seconds, and the agent must go on calling the
        # service.
        if scratch is not None:
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
        if transfer is not None:
            await asyncio.to_thread(transfer.close)

    # Starting a child

    async def _present_child(self) -> ChildProcess:
        if self._child is None:
            await self.start()
        assert self._child is not None, "started"
        return self._child

    async def _replace_dead_child(self) -> None:
        """Drop a child that died while it was idle, so that no candidate is blamed."""
        if self._child is not None and self._child.has_ended:
            await self.close()

    async def _start_process(self, scratch: Path, readable: Path) -> ChildProcess:
        # With -P, a folder named `compiler` in the working directory isn't imported.
        command = [sys.executable, "-P", "-m", "worker.runner.child", "--parent", str(os.getpid())]
        command += ["--runner", self._config.runner, "--threads", str(self._config.threads)]
        command += ["--kind", self._config.kind.name, "--user", self._config.user]
        if self._config.without:
            command += ["--without", *self._config.without]
        command += ["--readable", str(readable)]
        if self._config.writable:
            command += ["--writable", *map(str, self._config.writable)]
        environment = allowed_variables(self._environment)
        environment |= {
            "PYTHONPATH": python_path(environment),
            "PYTHONFAULTHANDLER": "1",
            "TMPDIR": str(scratch),
            "HOME": str(scratch),
            "TVM_NUM_THREADS": str(self._config.threads),
            # Loading a compiled model sets this variable to 0, and a child would inherit it.
            "TVM_BIND_THREADS": "1",
            # Threads of TVM's pool soon sleep, as in a user's process. Or else they compete with builds.
            "TVM_THREAD_POOL_SPIN_COUNT": "4000",
            ZIG_CACHE: str(scratch / CACHE_FOLDER),
        }
        return await ChildProcess.start(command, environment)

    def _accept(self, first: pb.ChildReply) -> Device:
        """Store the sandbox gaps and platforms in a child's first reply. Return its device.

        Raises FrameError, SettingsError, and NoPlatformError if a child that builds has no platform.
        """
        kind = first.WhichOneof("reply")
        if kind == "unusable":
            raise SettingsError(clean_text(first.unusable))
        if kind != "ready":
            raise FrameError("its first reply was not the device")
        device = child_messages.device_of(first.ready)
        gaps = child_messages.sandbox_gaps_of(first.ready)
        for gap in gaps:
            if gap not in self._sandbox_gaps:
                _log.warning("%s", gap)
        self._sandbox_gaps = gaps
        if gaps and self._config.require_sandbox:
            raise SettingsError(f"this worker requires a sandbox without gaps, but {'; '.join(gaps)}")
        if self._config.builds:
            platforms = child_messages.platforms_of(first.ready)
            wanted = [name for name in platforms.names if _is_for_gpus_here(name) or not self._config.gpu]
            if not wanted:
                raise NoPlatformError("; ".join(platforms.problems) or "it can link for no platform")
            if platforms.names != self._builds_for and not self._config.gpu:
                for problem in platforms.problems:
                    _log.warning("builds for %s only: %s", ", ".join(platforms.names), problem)
            self._builds_for = platforms.names
        return device

    async def _start_error(self, error: Exception) -> ChildStartError:
        """Kill the child, and return the cause of its failure."""
        stderr = ""
        if self._child is not None:
            await self._child.kill()
            stderr = await self._child.stderr_tail()
        await self.close()
        match error:
            case TimeoutError():
                failure = timed_out(self._config.start_timeout_s)
            case ChildDied():
                failure = died(error, stderr)
            case OSError():
                failure = start_failure("start", f"its measuring process can't be started: {error}")
            case _:
                failure = start_failure(type(error).__name__, str(error))
        return ChildStartError(failure, stderr)

    # Building

    async def _prepare(
        self, request: BuildRequest, limits: Limits, ahead: Sequence[BuildRequest]
    ) -> Measurement | None:
        """Build a candidate in the current child; return its failure if it fails to build."""
        batch = list(dict.fromkeys([request, *ahead]))
        self._failed = {one: failure for one, failure in self._failed.items() if one in batch}
        await self._replace_dead_child()
        if request not in self._built and request not in self._failed:
            await self._build(batch, limits)
        return self._failed.pop(request, None)

    async def _build(self, requests: Sequence[BuildRequest], limits: Limits) -> None:
        """Build each candidate in the current child, or store its failure.

        When a child dies, the candidates that it was building and those that it had run before may be the
        cause. So each suspect is built alone in a new child. Then the others are built together again. If no
        suspect fails alone, every candidate is built alone.
        """
        while waiting := [one for one in requests if one not in self._built and one not in self._failed]:
            had_run = self._has_run
            with tracing.span("build", candidates=len(waiting)):
                failure, suspects = await self._build_together(waiting, limits)
            if len(waiting) == 1:
                if failure is not None and not had_run:
                    self._failed[waiting[0]] = failure
                continue
            for suspect in suspects:
                await self._build([suspect], limits)
            if failure is not None and not any(suspect in self._failed for suspect in suspects):
                for one in waiting:
                    await self._build([one], limits)

    async def _build_together(
        self, requests: Sequence[BuildRequest], limits: Limits
    ) -> tuple[Measurement | None, list[BuildRequest]]:
        """Build candidates in the current child; return the child's failure, if any, and the suspects.

        Suspects are the candidates that the child was building when it failed. Candidates that failed beside
        others are suspects too, because they may only have lacked memory.
        """
        child = await self._present_child()
        numbered = {next(self._numbers): request for request in requests}
        call = BuildCall(child, numbered, limits.build_timeout_s)
        result: frozenset[int] | Measurement | None = None
        try:
            candidates = await asyncio.to_thread(self._transfer_libraries, numbered)
            message = pb.ChildRequest(
                memory_bytes=limits.memory_bytes,
                cpu_s=self._cpu_s(limits.build_timeout_s * len(requests)),
                build=pb.BuildCandidates(candidates=candidates),
            )
            result = await call.result(message)
        except OSError as error:
            result = Measurement(Outcome.UNKNOWN, error=f"a library can't be given to the child: {error}")
        finally:
            if not isinstance(result, frozenset):
                await self.close()
        if isinstance(result, Measurement):
            return result, [numbered[number] for number in numbered if number in call.in_flight]
        if self._transfer is not None:
            self._transfer.clear()  # the child has loaded the libraries
        suspects = {numbered[number] for number in result if len(numbered) > 1}
        self._built |= {one: number for number, one in numbered.items() if one not in suspects}
        return None, [one for one in requests if one in suspects]

    def _transfer_libraries(self, numbered: Mapping[int, BuildRequest]) -> list[pb.CandidateBuild]:
        """Move libraries to a folder that the child may read. Return the changed requests. Raises OSError."""
        assert self._transfer is not None, "created together with the child"
        encoded = []
        for number, request in numbered.items():
            if request.library is not None:
                request = replace(request, library=str(self._transfer.add(Path(request.library))))
            encoded.append(child_messages.build_to_wire(number, request))
        return encoded

    # Calling the child

    async def _run(
        self,
        request: pb.ChildRequest,
        decode: Callable[[pb.ChildReply], _T],
        timeout_s: float,
        memory_bytes: int,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> _T | Measurement:
        await self._present_child()
        self._has_run = True
        with tracing.span("run"):
            return await self._call(Phase.RUN, request, decode, timeout_s, memory_bytes, max_reply_bytes)

    async def _run_on_file(
        self,
        request: Callable[[str], pb.ChildRequest],
        file: Path,
        limits: Limits,
        decode: Callable[[pb.ChildReply], _T],
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> _T | Measurement:
        """Run the whole model in a file in the child."""
        await self._replace_dead_child()
        await self._present_child()
        assert self._transfer is not None, "created together with the child"
        try:
            path = await asyncio.to_thread(self._transfer.add, file)
        except OSError as error:
            return Measurement(Outcome.UNKNOWN, error=f"the model can't be given to the child: {error}")
        try:
            return await self._run(
                request(str(path)), decode, limits.module_timeout_s, limits.memory_bytes, max_reply_bytes
            )
        finally:
            path.unlink(missing_ok=True)

    async def _call(
        self,
        phase: Phase,
        request: pb.ChildRequest,
        decode: Callable[[pb.ChildReply], _T],
        timeout_s: float,
        memory_bytes: int,
        max_reply_bytes: int = MAX_REPLY_BYTES,
    ) -> _T | Measurement:
        """Make one call to the child. Kill the child afterwards if it can't be trusted any more."""
        call = UnaryCall(await self._present_child(), phase, timeout_s, max_reply_bytes)
        request.memory_bytes, request.cpu_s = memory_bytes, self._cpu_s(timeout_s)
        trusted = False
        try:
            result = await call.result(request, decode)
            # A child that uses too much memory would let good candidates fail.
            is_harmless = not isinstance(result, Measurement) or result.outcome not in RESTART_OUTCOMES
            trusted = call.succeeded and is_harmless and call.grown_bytes <= memory_bytes // 2
        finally:
            if not trusted:
                await self.close()
        return result

    def _cpu_s(self, timeout_s: float) -> float:
        """Return the limit of CPU time, which matters only if the agent fails to end a candidate."""
        return CPU_SLACK * timeout_s * self._config.threads


def _is_for_gpus_here(name: str) -> bool:
    """Return whether a platform has GPUs and this machine's processor architecture."""
    return name != arch_of(name) == platform.machine()


def _explain_memory(measurement: Measurement, memory_bytes: int) -> Measurement:
    """If a module run lacked memory, add a line with the limit and the next step to its error."""
    if measurement.outcome is not Outcome.RUN_ERROR:
        return measurement
    installed_bytes = psutil.virtual_memory().total
    killed = f"ended by {signal.SIGKILL.name}" in measurement.error and memory_bytes >= installed_bytes
    if not killed and not any(text in measurement.error for text in OUT_OF_MEMORY):
        return measurement
    may = f"the model and the untuned one, which it is compared with, may take {_gb(memory_bytes)} here"
    if memory_bytes >= installed_bytes:
        sentence = f"{may}, and this device has {_gb(installed_bytes)}: time it on a device with more memory"
    else:
        sentence = f"{may}, which isn't enough: raise TUNEFARM_WORKER_MEMORY_BYTES on this device"
    return replace(measurement, error=f"{measurement.error.rstrip()}\n{sentence}")


def _gb(size: int) -> str:
    return f"{size / 1e9:.3g} GB"

"""The scheduler's environment, simulated by the test: clock, wake-ups, compiler and device."""

from __future__ import annotations

import io
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, Any

from tvm import te, topi

from compiler.children.models import ImportedModel
from compiler.children.verification import Verification
from compiler.importing.model import ExtractedTask
from compiler.importing.spec import CacheSpec, TensorSpec
from compiler.lowering.trace import UNSCHEDULED
from compiler.packaging.artifact import REFERENCE_FAILED, ArtifactError, Manifest, open_reference, unpack
from compiler.workload import to_json, workload_hash
from core.device import Device
from core.inference import Comparison, OutputDifference
from core.job import Budget, Quantize
from core.measurement import Footprint, Measurement, Outcome
from core.model_format import ModelFormat
from core.model_outline import InputOutline, ModelOutline, OperatorOutline
from core.quantization import OutputAccuracy, Quantization
from core.worker import Vitals, WorkerState
from records.fleet import leases, module_runs, workers
from records.fleet.leases import LeasedTrial, StoredLease
from records.fleet.module_runs import StoredModuleRun
from records.fleet.results import LeaseResult
from records.fleet.workers import WorkerSession
from records.jobs import inferences, jobs, models, tasks, trials
from records.jobs.jobs import Job, JobRequest
from records.jobs.trials import Trial
from records.schedules import schedules
from records.schedules.schedules import Record
from records.storage import blobs
from records.storage.database import Database
from scheduler.context import Context
from scheduler.model_compiler import CompilerChildren
from scheduler.settings import SchedulerSettings
from scheduler.steps.drive import drive, wake_jobs
from scheduler.upkeep.outlines import OutlineReader
from scheduler.upkeep.sweep import Sweeper
from search.evolution.evolve import EvolutionConfig
from search.policy import SearchConfig, propose
from tests import workloads
from tests.devices import DEVICE

SETTINGS = SchedulerSettings(
    broker="unused", database_url="unused", batch_size=4, trials_per_pick=2, plan_ahead=0
)
IN_ONNX_RUNTIME = Measurement(Outcome.OK, (0.0131,) * 3)
SMALL = EvolutionConfig(population=32, generations=1)
# The search, with small populations.
search_quickly = partial(propose, config=SearchConfig(SMALL, SMALL, max_sketches=2))
UNTUNED, TUNED, HARMED = b"untuned library", b"tuned library", b"tuned library that fails"


def extracted(name: str, module: Any, weight: int) -> ExtractedTask:
    return ExtractedTask(workload_hash(module), to_json(module), name, weight, (1,), (name,))


def _cumsum() -> Any:
    """A workload that the search doesn't cover, because its code isn't one block per value."""
    data = te.placeholder((4, 8), name="data")
    return workloads.module([data, topi.cumsum(data, axis=1)])


MATMUL = extracted("matmul", workloads.matmul(16, 16, 16), 3)
CONV = extracted("conv", workloads.conv2d(7, 4, 8, 3, 1, 1), 1)
CUMSUM = extracted("cumsum", _cumsum(), 1)


@dataclass
class FakeCompiler:
    """Imports every file as the same `tasks`; raises `import_error` and `build_error` while they are set.

    It can't compile `uncompilable` traces, or the `unschedulable` task with any schedule. Libraries with
    `harmful` traces fail.
    """

    tasks: Sequence[ExtractedTask] = (MATMUL, CONV)
    import_error: Exception | None = None
    verification: Verification | Exception = field(default_factory=Verification)
    build_error: Exception | None = None
    padded_axis: int | None = None
    halves_in_float32: tuple[int, int] = (0, 0)
    uncompilable: Callable[[str], bool] = lambda trace: False
    harmful: Callable[[str], bool] = lambda trace: False
    unschedulable: ExtractedTask | None = None
    tuned: bytes = TUNED
    inputs_error: Exception | None = None
    imported: int = 0
    quantized: int = 0
    tf32: bool = False
    is_onnx: bool = False
    cache: CacheSpec | None = None
    schedules: list[Mapping[str, str]] = field(default_factory=list)

    @property
    def children(self) -> CompilerChildren:
        return CompilerChildren(
            import_model=lambda *args, **options: self.import_model(*args, **options),
            compile_untuned=self._compile_untuned,
            compile_tuned=self._compile_tuned,
            find_batch_shapes=lambda file, shapes, batch: {"x": (batch, 3)},
            verify_import=self._verify,
            check_traces=self._check_traces,
            quantize_model=self._quantize,
            check_inputs=self._check_inputs,
            outline_model=self._outline,
            compare_outputs=lambda *_: Comparison((OutputDifference("data", 3, 1, 0.5, 20.0),)),
        )

    def _outline(self, file: IO[bytes]) -> ModelOutline:
        if self.import_error is not None:
            raise self.import_error
        inputs = (InputOutline("data", "float32", ("batch", 3)),)
        return ModelOutline(ModelFormat.ONNX, inputs, ("y",), (OperatorOutline("Relu", 2, True),))

    def _check_inputs(self, inputs: IO[bytes], specs: Sequence[TensorSpec]) -> None:
        if self.inputs_error is not None:
            raise self.inputs_error

    def _quantize(
        self,
        model: IO[bytes],
        shapes: object,
        kind: Quantize,
        data: IO[bytes] | None,
        into: IO[bytes],
        *,
        narrow: bool,
    ) -> Quantization:
        self.quantized += 1
        into.write(b"quantized model")
        samples = 0 if data is None else 4
        outputs = (OutputAccuracy("y", 30.0),)
        return Quantization(kind, data is None, samples, 2, 1, outputs, (), narrow=3 * narrow)

    def import_model(
        self, file: IO[bytes], shapes: Mapping[str, tuple[int, ...]], target: str, *, tf32: bool = False
    ) -> ImportedModel:
        self.imported += 1
        self.tf32 = tf32
        if self.import_error is not None:
            raise self.import_error
        data = TensorSpec("data", (1, 3), "float32")
        outputs = (replace(data, padded_axis=self.padded_axis),)
        inputs: tuple[TensorSpec, ...] = (data,)
        if self.cache is not None:
            inputs += (TensorSpec(self.cache.position, (1,), "int64"),)
        return ImportedModel(
            *(inputs, outputs, tuple(self.tasks)),
            is_onnx=self.is_onnx,
            cache=self.cache,
            halves_in_float32=self.halves_in_float32,
        )

    def _compile_untuned(
        self,
        file: IO[bytes],
        shapes: Mapping[str, tuple[int, ...]],
        target: str,
        library: IO[bytes],
        *,
        tf32: bool = False,
    ) -> ImportedModel:
        library.write(UNTUNED)
        return self.import_model(file, shapes, target, tf32=tf32)

    def _verify(self, file: IO[bytes], shapes: object, target: str) -> Verification:
        if isinstance(self.verification, Exception):
            raise self.verification
        return self.verification

    def _compile_tuned(
        self,
        file: IO[bytes],
        shapes: object,
        target: str,
        schedules: Mapping[str, str],
        library: IO[bytes],
        *,
        tf32: bool = False,
    ) -> None:
        assert tf32 == self.tf32, "the same variants as those that were imported"
        if self.build_error is not None:
            raise self.build_error
        task = self.unschedulable
        is_scheduled = task is not None and schedules.get(task.workload_hash) != UNSCHEDULED
        if is_scheduled or any(map(self.uncompilable, schedules.values())):
            raise ArtifactError("compiling the model crashed the compiler (SIGSEGV)")
        self.schedules.append(schedules)
        library.write(HARMED if any(map(self.harmful, schedules.values())) else self.tuned)

    def _check_traces(self, pairs: Sequence[tuple[str, str]], target: str) -> list[str]:
        task = self.unschedulable
        fails = [
            self.uncompilable(trace) or (task is not None and task.module_json == text)
            for text, trace in pairs
        ]
        return ["it crashed the compiler (SIGSEGV)" if failed else "" for failed in fails]


@dataclass
class Farm:
    """`tick` simulates five seconds: a sweep, the steps that it wakes, and one lease of the device."""

    database: Database
    device: Device = DEVICE
    now: float = 1000.0
    clock_set_s: float = 0.0
    settings: SchedulerSettings = SETTINGS
    wakes: deque[tuple[str, str]] = field(default_factory=deque)
    latency_s: Mapping[bytes, float] = field(default_factory=lambda: {UNTUNED: 0.5, TUNED: 0.01})
    slowdowns: Sequence[float] = (1.0, 1.0, 1.0)  # of each repeat of a model
    speed: float | None = None  # of the device while it times models
    broken: frozenset[bytes] = frozenset({HARMED})
    uncomparable: bool = False
    onnxruntime: str = "1.31.1"
    in_onnx_runtime: Measurement = IN_ONNX_RUNTIME
    inferred: Measurement = IN_ONNX_RUNTIME
    sends_outputs: bool = True
    measured: list[int] = field(default_factory=list)
    leased: int = 0
    compiler: FakeCompiler = field(default_factory=FakeCompiler)
    context: Context = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, database: Database | None = None, **settings: Any) -> None:
        """Start a new scheduler process, without caches and without wake-ups."""
        self.wakes.clear()
        self.settings = self.settings.model_copy(update=settings)
        wake = lambda step, job_id: self.wakes.append((step, job_id))  # noqa: E731
        self.context = Context(
            self.settings,
            database or self.database,
            lambda: self.now,
            "here",
            wake,
            children=self.compiler.children,
        )
        self._sweeper = Sweeper(
            self.context, OutlineReader(self.context), lambda: self.now - self.clock_set_s
        )

    def submit(
        self, job_id: str = "job", trials: int = 8, minutes: float | None = None, **changes: Any
    ) -> str:
        with self.database.begin() as session:
            sha = blobs.put(session, b"a model")
            models.add(session, sha, "net", self.now)
            plain = JobRequest(sha, "net", {}, "native", Budget(trials, minutes), seed=7)
            jobs.create(session, job_id, replace(plain, **changes), jobs.Submission(self.now))
        return job_id

    def plug_in(self, state: WorkerState = WorkerState.READY, health_error: str = "") -> None:
        """Make the worker call. Before it is ready for the first time, its device is unknown."""
        device = None if state is WorkerState.PROBING else self.device
        vitals = Vitals(health_error=health_error)
        with self.database.begin() as session:
            workers.register(
                session, WorkerSession("worker", "session", state, device, vitals=vitals), self.now
            )

    def tick(self) -> None:
        self.sweep()
        self.work()
        self.drain()
        self.now += 5

    def sweep(self) -> None:
        self._sweeper.repair()
        wake_jobs(self.context)
        self.drain()

    def drain(self) -> None:
        while self.wakes:
            step, job_id = self.wakes.popleft()
            drive(self.context, step, job_id)

    def finish(self, job_id: str = "job", ticks: int = 60) -> Job:
        for _ in range(ticks):
            if self.job(job_id).state.finished:
                break
            self.tick()
        job = self.job(job_id)
        assert job.state.finished, f"{job.state}: {job.message}"
        return job

    def work(self, limit: int = 64) -> StoredLease | None:
        """Make the device acquire a lease and report it at once."""
        lease = self.lease(limit)
        if lease is not None:
            self.report(lease)
        return lease

    def lease(self, limit: int = 64) -> StoredLease | None:
        self.leased += 1
        with self.database.begin() as session:
            vitals = Vitals(onnxruntime_version=self.onnxruntime, infers=True)
            worker = WorkerSession("worker", "session", WorkerState.READY, self.device, vitals)
            workers.heartbeat(session, worker, self.now)
            return leases.acquire_lease(
                session, f"lease {self.leased}", worker, limit, now=self.now, ttl_s=60.0
            )

    def report(self, lease: StoredLease, limit: int | None = None) -> None:
        """Report the results of a lease. With a `limit`, only the first trials are reported."""
        measured = lease.trials[:limit]
        results = [LeaseResult(measure(trial), trial_id=trial.id) for trial in measured]
        results += [LeaseResult(self._time(run), module_run_id=run.id) for run in lease.module_runs]
        with self.database.begin() as session:
            effect = leases.report(session, lease.id, "session", results, self.now)
        self.measured += [trial.id for trial in measured]
        if limit is None or effect.worth_planning:
            self.wakes += [("round", lease.job_id), ("publish", lease.job_id)]

    def _time(self, run: StoredModuleRun) -> Measurement:
        if run.kind == "onnxruntime":
            return self.in_onnx_runtime
        if run.kind == "inference":
            return self._infer(run)
        artifact = self.blob(run.artifact_sha)
        library, _ = unpack(artifact)
        reference = open_reference(io.BytesIO(artifact))
        if self.uncomparable and reference is not None:
            return Measurement(Outcome.RUN_ERROR, error=f"{REFERENCE_FAILED}std::bad_alloc")
        if reference is not None and reference.read() in self.broken:
            return Measurement(Outcome.RUN_TIMEOUT, error="the run took longer than 120 s")
        if library in self.broken:
            return Measurement(Outcome.WRONG_RESULT, error="first line\nthe outputs differ")
        run_s = tuple(self.latency_s[library] * by for by in self.slowdowns)
        return Measurement(
            Outcome.OK,
            run_s,
            footprint=Footprint(1e-3, len(library), self.latency_s[library]),
            speed=self.speed,
        )

    def _infer(self, run: StoredModuleRun) -> Measurement:
        if self.sends_outputs:
            with self.database.begin() as session:
                inferences.set_outputs(session, run.job_id, blobs.put(session, b"outputs"))
        return self.inferred

    def blob(self, sha: str | None) -> bytes:
        assert sha is not None
        with self.database.begin() as session:
            return blobs.get(session, sha)

    def published(self, job_id: str = "job") -> tuple[bytes, Manifest]:
        return unpack(self.blob(self.job(job_id).artifact_sha))

    def job(self, job_id: str = "job") -> Job:
        with self.database.begin() as session:
            return jobs.get(session, job_id)

    def tasks(self, job_id: str = "job") -> list[tasks.Task]:
        with self.database.begin() as session:
            return tasks.for_job(session, job_id)

    def trials(self, job_id: str = "job") -> list[Trial]:
        with self.database.begin() as session:
            listed = tasks.for_job(session, job_id)
            return [trial for task in listed for trial in trials.for_task(session, task.id)]

    def runs(self, job_id: str = "job") -> list[StoredModuleRun]:
        with self.database.begin() as session:
            return module_runs.of_job(session, job_id)

    def records(self) -> list[Record]:
        with self.database.begin() as session:
            return schedules.history(session, self.device.key)


def measure(trial: LeasedTrial) -> Measurement:
    """Measure a trial: the same trace always takes the same time, and one in five does not build. A model's
    four kernels take 10 ms together, like the tuned library."""
    digest = zlib.crc32(trial.trace.encode())
    if digest % 5 == 0:
        return Measurement(Outcome.BUILD_ERROR, error="no such intrinsic")
    return Measurement(Outcome.OK, (2.4e-3 + digest % 1000 * 1e-7,))

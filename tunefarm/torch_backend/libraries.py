"""Compile exported graphs with known schedules, or tune them in a job."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from compiler.children.models import CompileRequest, FusedModel, LibraryKind
from compiler.importing.formats import exported_program
from compiler.importing.model import ExtractedTask
from compiler.importing.spec import ModelError, first_line
from compiler.packaging.artifact import ArtifactError, Manifest, ScheduleError, instructions_of
from compiler.target import detect_device
from compiler.variants.choice import VariantModel
from core.device import Device
from core.job import JobState
from core.model_latency import base_workload
from records.schedules import schedules
from records.storage.database import Database, StorageError
from system.command import CommandError
from tunefarm.cli.tune import DEFAULT_TRIALS
from tunefarm.client.artifact import unpack
from tunefarm.client.client import Client, ClientError
from tunefarm.client.schedule_cache import ScheduleCache
from tunefarm.client.values import JobRequest
from tunefarm.embedded.folder import DataFolder
from tunefarm.settings import CommandSettings, load
from tunefarm.torch_backend.exported_graph import CannotCompile, Exported
from tunefarm.tuning import tune

_log = logging.getLogger(__name__)
LOOK_EVERY_S = 2.0
MODEL_NAME = "torch.compile"

# A trace and its seconds.
Known = Mapping[str, tuple[float, str]]


def compile_with_known(exported: Exported) -> TemporaryDirectory[str]:
    """Compile a graph with the best schedules of the service or the local database, and fallback schedules
    for the rest. Return the folder of the library. Raises CannotCompile."""
    settings = load()
    device = detect_device(settings.threads)
    try:
        model = exported_program.of_program(exported.program).to_relax()
        if len(model.outputs) != len(exported.program.graph_signature.user_outputs):
            raise CannotCompile("it writes into its inputs or its buffers")
        fused = FusedModel(model, VariantModel.of(model, device.target), is_onnx=False)
        tasks = fused.imported.tasks
        traces = _fastest(tasks, _known([task.workload_hash for task in tasks], device, settings))
        folder = TemporaryDirectory(prefix="tunefarm-torch-")
        _prepare(fused, device.target, traces)(Path(folder.name, "model.so"))
    except (ModelError, ArtifactError) as error:
        raise CannotCompile(str(error)) from error
    except CannotCompile:
        raise
    except Exception as error:  # PyTorch and TVM have their own exception classes
        raise CannotCompile(first_line(error)) from error
    with Path(folder.name, "model.so").open("rb") as library:
        instructions = instructions_of(library, device.target)
    manifest = Manifest(
        model_name=MODEL_NAME,
        model_sha="",
        target=device.target,
        device_class=device.key,
        inputs=model.inputs,
        outputs=model.outputs,
        threads=device.cores,
        versions={},
        created_at=time.time(),
        computed_in=model.computed_in,
        instructions=instructions,
    )
    Path(folder.name, "manifest.json").write_text(manifest.to_json())
    _log.info("compiled a graph with %d of %d schedules known", len(traces), len(tasks))
    return folder


def _prepare(fused: FusedModel, target: str, traces: dict[str, str]) -> Callable[[Path], None]:
    """Schedule a graph. Return the function that compiles it into a file.

    A trace that doesn't apply is logged and removed from `traces`. Raises ArtifactError.
    """
    while True:
        try:
            return fused.prepare(CompileRequest(b"", {}, target, LibraryKind.TUNED, traces))
        except ScheduleError as error:
            if traces.pop(error.workload_hash, None) is None:
                raise
            _log.warning("torch.compile: the fallback schedule is used instead: %s", error)


def tune_now(exported: Exported, trials: int) -> TemporaryDirectory[str]:
    """Tune a graph, as `tunefarm tune` does. Return the folder of the library. Raises CannotCompile."""
    folder = TemporaryDirectory(prefix="tunefarm-torch-")
    try:
        tune(exported.program, trials=trials, target=_own_target(), output=Path(folder.name, "tuned"))
    except (CommandError, ClientError) as error:
        raise CannotCompile(f"it could not be tuned: {error}") from error
    _move_library(Path(folder.name))
    return folder


def _move_library(folder: Path) -> None:
    for file in Path(folder, "tuned").iterdir():
        file.rename(folder / file.name)


# Takes the folder of a library; raises CannotCompile.
Swap = Callable[[TemporaryDirectory[str]], None]


def tune_in_background(exported: Exported, trials: int | None, swap: Swap) -> None:
    """Submit a graph to the service. Once it is tuned, call `swap` with the folder of its library.

    If there is no service, or the job fails, or the library is refused, the reason is logged.
    """
    threading.Thread(
        target=_tune_and_swap, args=(exported, trials, swap), name="tunefarm", daemon=True
    ).start()


def _tune_and_swap(exported: Exported, trials: int | None, swap: Swap) -> None:
    try:
        settings = load()
        url = _service(settings)
        if url is None:
            raise CannotCompile("no service is running here: set TUNEFARM_SERVER or run `tunefarm up`")
        folder = TemporaryDirectory(prefix="tunefarm-torch-")
        with Client(url, settings.secret, tls=settings.tls) as client:
            file = Path(folder.name, "graph.pt2")
            torch.export.save(exported.program, file)
            model = client.upload(file, MODEL_NAME)
            job = client.submit(JobRequest(model.sha256, trials or DEFAULT_TRIALS, target=_own_target()))
            while not job.state.finished:
                time.sleep(LOOK_EVERY_S)
                job = client.job(job.id)
            if job.state is not JobState.DONE:
                raise CannotCompile(f"job {job.id} is {job.state}: {job.error or job.message}")
            archive = Path(folder.name, "artifact.tar")
            client.download(job.id, archive)
        unpack(archive, Path(folder.name))
        swap(folder)
        _log.info("job %s: the program uses its library from now on", job.id)
    except (CannotCompile, CommandError, ClientError, OSError, ValueError) as error:
        _log.warning("torch.compile: a graph was not tuned in the background: %s", error)


def _known(workloads: Sequence[str], device: Device, settings: CommandSettings) -> Known:
    """Return the measured schedules of workloads on a device. If the service can't be asked, log why."""
    url = _service(settings)
    try:
        if url is not None:
            with Client(url, settings.secret, tls=settings.tls) as client:
                found = ScheduleCache(client, device.key).best_of(workloads)
            return {name: (one.latency_s, one.trace) for name, one in found.items() if one.source != "import"}
        folder = DataFolder(settings.data)
        if not folder.database_file.exists():
            return {}
        with Database(folder.database_url).reading() as session:
            records = schedules.best_many(session, workloads, device.key)
        return {
            name: (one.latency_s, one.trace)
            for name, one in records.items()
            if one.latency_s is not None and one.source != "import"
        }
    except (ClientError, StorageError, OSError, ValueError) as error:
        _log.warning("torch.compile: the schedules known can't be asked for: %s", error)
        return {}


def _own_target() -> str:
    """Return the device class of this machine if the service has it, because a library of another kind of
    device may not run here; else "native". Raises CommandError and ClientError."""
    settings = load()
    url = _service(settings)
    if url is None:
        return "native"
    key = detect_device(settings.threads).key
    with Client(url, settings.secret, tls=settings.tls) as client:
        return key if any(one.key == key for one in client.device_classes()) else "native"


def _service(settings: CommandSettings) -> str | None:
    """Return the URL of the service in the settings, or of the service that runs here."""
    running = DataFolder(settings.data).running()
    return settings.server or (running.url if running is not None else None)


def _fastest(tasks: Sequence[ExtractedTask], known: Known) -> dict[str, str]:
    """Return the fastest trace of each workload and its variants, by the workload that it schedules."""
    best: dict[str, tuple[float, str]] = {}
    for task in tasks:
        if task.workload_hash in known:
            found, base = (known[task.workload_hash][0], task.workload_hash), base_workload(task)
            best[base] = min(found, best.get(base, found))
    return {workload: known[workload][1] for _, workload in best.values()}

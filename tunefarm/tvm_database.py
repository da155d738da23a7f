"""A TVM database of the best schedules that a tunefarm service knows. Needs TVM.

module = relax.transform.AttachAttrLayoutFreeBuffers()(module)
with Client("http://tuner:8760") as client:
    database = service_database(ScheduleCache(client, "rpi5"), module)
with Target(json.loads(target)), database:
    module = relax.transform.MetaScheduleApplyDatabase()(module)
module = relax.transform.SplitLayoutRewritePreproc()(module)
module = relax.transform.FoldConstant()(module)
executable = build(module, target)

The first pass marks the constant operands, because schedules are stored for functions with certain operands
constant. The last two passes pack them once.

`file_database` reads the files of `tunefarm export` instead. `tuned_model` imports a model's file as such a
module, with the variants of operators that are faster in a database. `build` compiles it with the passes that
its schedules were measured with.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import tvm
from tvm import relax
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.database import Database, PyDatabase, TuningRecord, Workload
from tvm.tirx import PrimFunc

from compiler.codegen.compilation import apply_passes, pass_context
from compiler.codegen.pipeline import PIPELINE
from compiler.importing.formats.reading import read_model
from compiler.importing.spec import Shape
from compiler.lowering.trace import apply_trace
from compiler.target import parse_target
from compiler.variants.choice import VariantModel
from compiler.workload import from_json, normalise, workload_hash
from core.model_latency import base_workload
from core.target import rewrite_target
from core.trace import parse_trace
from tunefarm.client import metaschedule_files
from tunefarm.client.schedule_cache import ScheduleCache
from tunefarm.client.values import ExportedRecord, Schedule


def service_database(cache: ScheduleCache, module: tvm.IRModule) -> Database:
    """Return a database in which TVM's passes find the best schedules of the functions of a module.

    They are fetched here in one call. While the service is unavailable, earlier responses are used. Imported
    schedules that were never measured are left out, because their outputs were not compared. Raises the
    exceptions of `cache`. A look-up raises LoweringError for a trace that does more than schedule, and
    TargetRefused for a target that does more than describe a machine.
    """
    functions = [func for _, func in module.functions_items() if isinstance(func, PrimFunc)]
    names = list(dict.fromkeys(workload_hash(normalise(func)) for func in functions))
    schedules = cache.best_of(names)
    measured = {name: found for name, found in schedules.items() if found.source != "import"}
    database: Database = _BestSchedules(measured)
    return database


def file_database(folder: Path | str) -> Database:
    """Return a database of the fastest schedules in a folder that `tunefarm export` wrote.

    TVM's JSONDatabase doesn't read every such folder. It refuses tensor intrinsics that aren't registered.
    A maximum that begins with -inf makes it wait forever: it replays traces in threads, and they wait for
    Python's lock (`compiler.reducers`). Raises InputError with the file and the line that can't be used. A
    look-up raises as in `service_database`.
    """
    fastest: dict[str, ExportedRecord] = {}
    for record in metaschedule_files.read(Path(folder)).records:
        before = fastest.setdefault(record.workload, record)
        if statistics.median(record.run_s) < statistics.median(before.run_s):
            fastest[record.workload] = record
    database: Database = _BestSchedules(fastest)
    return database


def tuned_model(
    data: bytes | IO[bytes], shapes: Mapping[str, Shape], target: str, database: Database
) -> tvm.IRModule:
    """Import a model as calls of fused functions, which MetaScheduleApplyDatabase schedules.

    If the database has a variant of a subgraph (`compiler.variants`) that is faster, the variant computes it.
    TF32 variants are left out, because TVM by itself generates no code for them. Raises ModelError.
    """
    model = VariantModel.of(read_model(data, shapes).to_relax(), target)
    fastest: dict[str, tuple[float, str]] = {}
    for task in model.tasks():
        workload = from_json(task.module_json)
        record = database.query_tuning_record(workload, parse_target(target), task.workload_hash)
        if record is not None and record.run_secs:
            found = statistics.median(map(float, record.run_secs)), task.workload_hash
            base = base_workload(task)
            fastest[base] = min(found, fastest.get(base, found))
    return model.choose([workload for _, workload in fastest.values()])


def build(module: tvm.IRModule, target: str) -> relax.VMExecutable:
    """Compile a scheduled module with the passes that tunefarm compiles candidates with.

    TVM's `relax.build` alone calls libm for each element of an exp or a sigmoid, and adds rows up one element
    after the other.
    """
    parsed = parse_target(target)
    with pass_context(parsed):
        return relax.build(apply_passes(module, parsed), parsed, tir_pipeline=PIPELINE)


@derived_object
class _BestSchedules(PyDatabase):
    """A read-only database with one schedule of each workload, by structural hash."""

    def __init__(self, schedules: Mapping[str, Schedule | ExportedRecord]) -> None:
        super().__init__()
        self._schedules = schedules
        self._records: dict[str, TuningRecord] = {}

    def has_workload(self, mod: tvm.IRModule) -> bool:
        return workload_hash(mod) in self._schedules

    def commit_workload(self, mod: tvm.IRModule) -> Workload:
        """Return the workload; TVM calls this before every look-up. Nothing is stored."""
        return Workload(mod)

    def commit_tuning_record(self, record: TuningRecord) -> None:
        raise NotImplementedError("the service takes records through `tunefarm import`, not from here")

    def get_top_k(self, workload: Workload, top_k: int) -> list[TuningRecord]:
        name = workload_hash(workload.mod)
        if name not in self._schedules or top_k < 1:
            return []
        if name not in self._records:
            best = self._schedules[name]
            # TVM replays any trace, so raise here for traces that do more than schedule.
            apply_trace(workload.mod, best.trace)
            target = json.loads(rewrite_target(best.target))
            fields = [parse_trace(best.trace), list(best.run_s), target, None]
            self._records[name] = TuningRecord.from_json(fields, workload)
        return [self._records[name]]

    def get_all_tuning_records(self) -> list[TuningRecord]:
        """Return the records that were looked up."""
        return list(self._records.values())

    def __len__(self) -> int:
        return len(self._schedules)

"""A TVM database that reads the best schedules from a tunefarm service. Needs TVM.

with Client("http://tuner:8760") as client, service_database(client, target="rpi5"):
    module = relax.transform.AttachAttrLayoutFreeBuffers()(module)
    module = relax.transform.MetaScheduleApplyDatabase()(module)
    module = relax.transform.SplitLayoutRewritePreproc()(module)
    module = relax.transform.FoldConstant()(module)

The first pass names the constant operands, which the schedules are stored by; the last two pack them once.
"""

from __future__ import annotations

import json

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.database import Database, PyDatabase, TuningRecord, Workload

from compiler.workload import workload_hash
from tunefarm.client.client import Client, ProblemError

NOT_FOUND = 404


def service_database(client: Client, target: str = "native") -> Database:
    """Return a database in which TVM's passes find the service's best schedules for a device class.

    Each workload is fetched once. TVM raises a RuntimeError with the reason when fetching fails.
    """
    database: Database = _ServiceDatabase(client, target)
    return database


@derived_object
class _ServiceDatabase(PyDatabase):
    """Looks workloads up by their structural hash. It is read-only."""

    def __init__(self, client: Client, target: str) -> None:
        super().__init__()
        self._client = client
        self._target = target
        self._records: dict[str, TuningRecord | None] = {}

    def has_workload(self, mod: tvm.IRModule) -> bool:
        return self._look_up(Workload(mod)) is not None

    def commit_workload(self, mod: tvm.IRModule) -> Workload:
        """Return the workload; TVM calls this before every look-up. Nothing is sent."""
        return Workload(mod)

    def commit_tuning_record(self, record: TuningRecord) -> None:
        raise NotImplementedError("the service takes records through `tunefarm import`, not from here")

    def get_top_k(self, workload: Workload, top_k: int) -> list[TuningRecord]:
        found = self._look_up(workload)
        return [found] if found is not None and top_k > 0 else []

    def get_all_tuning_records(self) -> list[TuningRecord]:
        """Return the records that have been looked up."""
        return [record for record in self._records.values() if record is not None]

    def __len__(self) -> int:
        return len(self.get_all_tuning_records())

    def _look_up(self, workload: Workload) -> TuningRecord | None:
        name = workload_hash(workload.mod)
        if name not in self._records:
            try:
                best = self._client.best(name, self._target)
            except ProblemError as error:
                if error.status != NOT_FOUND:
                    raise
                self._records[name] = None
            else:
                fields = [json.loads(best.trace), list(best.run_secs), json.loads(best.target), None]
                self._records[name] = TuningRecord.from_json(fields, workload)
        return self._records[name]

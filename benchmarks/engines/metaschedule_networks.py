"""Tune a network with MetaSchedule, on tunefarm's subgraphs and with smaller batches than its default.

As a program, this module tunes. `trial_rate` runs it in a process group that can be killed at any time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

STARTED = "started"
WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"
FAILED_S = 1e9  # MetaSchedule records failed candidates with at least this time
# Its default limits of 30 s may pass before its processes have imported TVM on a busy machine.
BUILD_LIMIT_S, RUN_LIMIT_S = 600.0, 120.0


class PeerFailed(Exception):
    """MetaSchedule failed before its first measurement. The message is its last line of output."""


@dataclass(frozen=True)
class TrialRate:
    """`trials` trials (`failed` of them failed) in `seconds` from the call of TVM's tuner to its last record.

    The first `set_up_s` passed before the first task was picked; they don't depend on the number of trials.
    """

    trials: int
    failed: int
    seconds: float
    set_up_s: float

    @property
    def per_s(self) -> float:
        return self.trials / self.seconds

    def per_s_over(self, trials: int) -> float:
        """Extrapolate `per_s` to a run of `trials` with one set-up."""
        return trials / (self.set_up_s + trials * (self.seconds - self.set_up_s) / self.trials)


def prepare_intrinsics() -> None:
    """Let this process import TVM's tensor intrinsics in 7 s of CPU instead of 60.

    MetaSchedule imports them wherever it tunes, and in each process that builds.
    """
    import compiler.tvmscript  # noqa: F401


def trial_rate(
    model: Path, target: str, *, threads: int, trials: int, limit_s: float, folder: Path
) -> TrialRate | None:
    """Tune until `trials` are done or `limit_s` seconds have passed. Return None if nothing was measured.

    MetaSchedule's database and logs stay in the empty `folder`. Raises PeerFailed.
    """
    command = (sys.executable, "-m", __name__, str(model), str(folder), target, str(trials))
    environment = os.environ | {"TVM_NUM_THREADS": str(threads)}
    output = folder / "output.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            failed = process.wait() not in (0, -signal.SIGKILL)
    rate = read_rate(folder)
    if failed and rate is None:
        raise PeerFailed(output.read_text(errors="replace").strip().rpartition("\n")[2])
    return rate


def read_rate(folder: Path) -> TrialRate | None:
    """Read the rate from the files in a run's folder. MetaSchedule appends records after each batch."""
    started, workloads, records = (folder / name for name in (STARTED, WORKLOADS, RECORDS))
    if not records.exists() or records.stat().st_size == 0:
        return None
    start_s = started.stat().st_mtime
    lines = records.read_bytes().splitlines()
    failed = sum(min(json.loads(line)[1][1]) >= FAILED_S for line in lines)
    return TrialRate(
        len(lines), failed, records.stat().st_mtime - start_s, workloads.stat().st_mtime - start_s
    )


def _tune(model: Path, folder: Path, target: str, trials: int) -> None:
    from tvm.s_tir.meta_schedule.builder import LocalBuilder
    from tvm.s_tir.meta_schedule.relax_integration import extract_tasks, tune_relax
    from tvm.s_tir.meta_schedule.runner import LocalRunner

    from compiler.importing.model import fuse, read_onnx
    from compiler.target import parse_target

    prepare_intrinsics()
    fused, parsed = fuse(read_onnx(model.read_bytes(), {}), target), parse_target(target)
    subgraphs = len(extract_tasks(fused, parsed))
    (folder / STARTED).touch()
    tune_relax(
        fused,
        {},
        parsed,
        str(folder),
        max_trials_global=trials,
        # With its default of 64 trials a batch, it leaves subgraphs untuned if there are few trials for each.
        # Unnecessarily small batches cost time, because each starts new builders, which import TVM.
        num_trials_per_iter=min(64, max(4, trials // subgraphs)),
        builder=LocalBuilder(timeout_sec=BUILD_LIMIT_S, initializer=prepare_intrinsics),
        runner=LocalRunner(timeout_sec=RUN_LIMIT_S),
        seed=0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Tune an ONNX model with MetaSchedule's defaults.")
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path, help="where the database goes")
    parser.add_argument("target", help="TVM's target as JSON")
    parser.add_argument("trials", type=int)
    args = parser.parse_args()
    _tune(args.model, args.folder, args.target, args.trials)


if __name__ == "__main__":
    main()

"""How fast MetaSchedule makes trials, with its defaults, on the subgraphs that tunefarm tunes too.

Run as a program it tunes; `trial_rate` runs it in a process group that can be ended at any moment.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

STARTED = "started"
RECORDS = "database_tuning_record.json"


@dataclass(frozen=True)
class TrialRate:
    """`trials` were measured within `seconds`, counted from the call of TVM's tuner to its last record."""

    trials: int
    seconds: float

    @property
    def per_s(self) -> float:
        return self.trials / self.seconds


def trial_rate(
    model: Path, target: str, *, threads: int, trials: int, limit_s: float, folder: Path
) -> TrialRate | None:
    """Tunes until `trials` are done or `limit_s` is over; None when it measured nothing in that time.

    `folder` is empty; MetaSchedule's database and logs stay there.
    """
    command = (sys.executable, "-m", __name__, str(model), str(folder), target, str(trials))
    environment = os.environ | {"TVM_NUM_THREADS": str(threads)}
    with (folder / "output.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return read_rate(folder)


def read_rate(folder: Path) -> TrialRate | None:
    """What a run left in its folder: its records are appended a batch at a time."""
    started, records = folder / STARTED, folder / RECORDS
    trials = len(records.read_bytes().splitlines()) if records.exists() else 0
    if not started.exists() or trials == 0:
        return None
    return TrialRate(trials, records.stat().st_mtime - started.stat().st_mtime)


def _tune(model: Path, folder: Path, target: str, trials: int) -> None:
    from tvm.s_tir.meta_schedule.relax_integration import tune_relax

    from compiler.model import fuse, read_onnx
    from compiler.target import parse_target

    fused = fuse(read_onnx(model.read_bytes(), {}), target)
    (folder / STARTED).touch()
    tune_relax(fused, {}, parse_target(target), str(folder), max_trials_global=trials, seed=0)


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

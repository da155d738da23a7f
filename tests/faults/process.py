"""Run the real server, scheduler or worker with a few replacements that don't affect the scenarios.

    python -m tests.faults.process server|scheduler|worker [FLAG]...

The file named by `TUNEFARM_TEST_CLOCK` steps the database's clock, the file named by
`TUNEFARM_TEST_HOST_CLOCK` this process's own. Waiting for a locked database ends after `BUSY_TIMEOUT_S`.
Unless `TUNEFARM_TEST_CHILDREN` is set, the scheduler compiles models in its own process and doesn't verify
their import, because they are ours. The worker measures with `tests.faults.runner`, whose candidates may
write notes. `TUNEFARM_TEST_SPEED_UP` shortens what the process waits for (`tests.faults.soak`).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from unittest.mock import patch

from records.storage.database import Database
from tests.faults.soak.compression import compress

if TYPE_CHECKING:
    from compiler.children.models import CompileRequest, ImportedModel
    from records.storage.blob_store import BlobStore

CLOCK_VARIABLE = "TUNEFARM_TEST_CLOCK"
HOST_CLOCK_VARIABLE = "TUNEFARM_TEST_HOST_CLOCK"
SPEED_UP_VARIABLE = "TUNEFARM_TEST_SPEED_UP"
CHILDREN_VARIABLE = "TUNEFARM_TEST_CHILDREN"
BUSY_TIMEOUT_S = 2.0
RUNNER = "tests.faults.runner:FaultyRunner"


def _server(flags: Sequence[str]) -> int:
    import server.main

    with patch.object(server.main, "Database", _FaultyDatabase):
        return server.main.main(flags)


def _scheduler(flags: Sequence[str]) -> int:
    import compiler.children.models
    import scheduler.context
    import scheduler.main
    from compiler.children.verification import Verification
    from scheduler.model_compiler import CompilerChildren

    if CHILDREN_VARIABLE in os.environ:
        with patch.object(scheduler.main, "Database", _FaultyDatabase):
            return scheduler.main.main()
    children = CompilerChildren(verify_import=lambda *_: Verification())
    with (
        patch.object(scheduler.main, "Database", _FaultyDatabase),
        patch.object(compiler.children.models, "compile_in_child", _carry_out),
        patch.object(scheduler.context, "Context", partial(scheduler.context.Context, children=children)),
    ):
        return scheduler.main.main()


def _carry_out(order: CompileRequest, _: object, library: IO[bytes] | None = None) -> ImportedModel:
    from compiler.children.models import FusedModel

    fused = FusedModel.of(order)
    if library is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.so"
            fused.prepare(order)(path)
            library.write(path.read_bytes())
    return fused.imported


def _worker(flags: Sequence[str]) -> int:
    import worker.main
    from tests.faults.runner import VARIABLE
    from worker.runner.executor import ChildConfig

    notes = Path(json.loads(os.environ[VARIABLE])["notes"])

    def config(threads: int, _runner: str, writable: tuple[Path, ...] = (), **others: Any) -> ChildConfig:
        return ChildConfig(threads, RUNNER, writable=(*writable, notes), **others)

    name = os.environ["TUNEFARM_WORKER_NAME"]
    # Each worker is on a machine of its own.
    with (
        patch.object(worker.main, "ChildConfig", config),
        patch.object(worker.main, "boot_id", lambda: f"boot-of-{name}"),
    ):
        return worker.main.main(flags)


class _FaultyDatabase(Database):
    """A database with a short lock timeout, whose clock follows the clock file."""

    def __init__(self, url: str, *, blob_store: BlobStore | None = None) -> None:
        super().__init__(url, busy_timeout_s=BUSY_TIMEOUT_S, blob_store=blob_store)

    def now(self) -> float:
        return super().now() + float(Path(os.environ[CLOCK_VARIABLE]).read_text())


def _step_host_clock(file: Path) -> None:
    """Make this process's clock follow the file."""
    real = time.time
    time.time = lambda: real() + float(file.read_text())


MAINS: dict[str, Callable[[Sequence[str]], int]] = {
    "server": _server,
    "scheduler": _scheduler,
    "worker": _worker,
}

if __name__ == "__main__":
    if SPEED_UP_VARIABLE in os.environ:
        compress(sys.argv[1], float(os.environ[SPEED_UP_VARIABLE]))
    if HOST_CLOCK_VARIABLE in os.environ:
        _step_host_clock(Path(os.environ[HOST_CLOCK_VARIABLE]))
    sys.exit(MAINS[sys.argv[1]](sys.argv[2:]))

"""An emulated arm64 worker of an x86 service: a convolution is built by a worker on this machine, then tuned
and run on arm64."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.packaging.elf import elf_arch
from core.measurement import Outcome
from records.jobs import jobs, tasks, trials
from records.storage.database import Database
from tests import arm64
from tests.processes import Service, service, until, worker

OBSTACLE = arm64.obstacle()
pytestmark = [
    pytest.mark.slow_lane(seconds=30),
    pytest.mark.timeout(1500),
    pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE)),
]
NAME = "emulated-board"
RUN = """
import sys
import numpy as np, tvm
from tvm import relax
model = relax.VirtualMachine(tvm.runtime.load_module("/var/tmp/model.so"), tvm.cpu())
np.save("/var/tmp/out.npy", model["main"](tvm.runtime.tensor(np.load("/var/tmp/in.npy"))).numpy())
"""


def convolution() -> onnx.ModelProto:
    weight = np.random.default_rng(0).standard_normal((16, 8, 3, 3), dtype=np.float32)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, 14, 14])
        for name, channels in (("x", 8), ("y", 16))
    ]
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = helper.make_graph([node], "conv", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    opset = [helper.make_opsetid("", 17)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=8)
    return model


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Service]:
    """A service with a worker that builds, and none that measures."""
    with service(tmp_path) as made, worker(made, "builder", "--build"):
        yield made


def well_built(farm: Service) -> list[bool]:
    """Return whether a builder built it, for each successful trial."""
    database = Database(farm.database_url)
    with database.begin() as session:
        (job,) = jobs.list_jobs(session, 10, None)
        found = [one for task in tasks.for_job(session, job.id) for one in trials.for_task(session, task.id)]
    database.close()
    return [trial.library_sha is not None for trial in found if trial.outcome is Outcome.OK]


def test_a_convolution_is_tuned_for_arm64_and_runs_there(farm: Service, tmp_path: Path) -> None:
    try:
        root = arm64.make()
    except arm64.Unavailable as error:
        pytest.skip(str(error))
    assert "aarch64" in farm.shown("builder")["builds_for"]
    board = arm64.start(
        root,
        ["/usr/bin/python3", "-m", "worker", "--server", farm.address, "--name", NAME, "--threads", "1"],
        # Emulated code is slow.
        {"TUNEFARM_WORKER_START_TIMEOUT_S": "600", "TUNEFARM_WORKER_BUILD_TIMEOUT_S": "300"},
    )
    try:
        until(lambda: board.poll() is not None or farm.shown(NAME).get("state") == "ready", 600)
        assert board.poll() is None, board.communicate()[0]
        onnx.save(convolution(), tmp_path / "conv.onnx")
        tuning = farm.start_tuning(tmp_path / "conv.onnx", "--trials", "4")
        out, errors = tuning.communicate()
    finally:
        board.terminate()
        output = board.communicate(timeout=60)[0]
    assert tuning.returncode == 0, errors + output
    result = json.loads(out)
    assert result["job"]["state"] == "done"
    assert all(task["best_s"] for task in result["tasks"] if task["covered"])
    assert well_built(farm), output
    assert all(well_built(farm)), "the board only loaded and timed them"
    computes_the_same(root, tmp_path)


def computes_the_same(root: Path, folder: Path) -> None:
    library = (folder / "conv-tuned" / "model.so").read_bytes()
    assert elf_arch(library) == "aarch64"
    image = np.random.default_rng(1).standard_normal((1, 8, 14, 14), dtype=np.float32)
    shared = root / "var" / "tmp"
    (shared / "model.so").write_bytes(library)
    np.save(shared / "in.npy", image)
    run = arm64.start(root, ["/usr/bin/python3", "-c", RUN], {"TVM_NUM_THREADS": "1"})
    output, _ = run.communicate(timeout=300)
    assert run.returncode == 0, output
    reference = onnxruntime.InferenceSession(str(folder / "conv.onnx"), providers=["CPUExecutionProvider"])
    (expected,) = reference.run(None, {"x": image})
    np.testing.assert_allclose(np.load(shared / "out.npy"), expected, rtol=1e-3, atol=1e-4)

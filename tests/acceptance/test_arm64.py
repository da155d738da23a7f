"""An arm64 worker, emulated, attached to an x86 service: a convolution is tuned for it and runs on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.linker import machine_of
from tests import arm64
from tests.integration.server.conftest import wait_until
from tests.services import free_port

OBSTACLE = arm64.obstacle()
pytestmark = [
    pytest.mark.slow,
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
def service(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Server and scheduler here, without a worker: the HTTP URL, and the address for workers."""
    http, grpc = free_port(), free_port()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TUNEFARM_")}
    environment = kept | {
        "PYTHONPATH": str(arm64.CHECKOUT),
        "TUNEFARM_DATABASE_URL": f"sqlite:///{tmp_path}/tunefarm.db",
        "TUNEFARM_BROKER": str(tmp_path / "broker"),
        "TUNEFARM_PORT": str(http),
        "TUNEFARM_GRPC_PORT": str(grpc),
    }
    with running("server", environment, tmp_path):
        wait_until(lambda: answers(http), 60)
        with running("scheduler", environment, tmp_path):
            yield f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}"


@contextmanager
def running(package: str, environment: dict[str, str], folder: Path) -> Iterator[None]:
    with (folder / f"{package}.log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", package], env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).is_success
    except httpx.TransportError:
        return False


def ready(url: str) -> bool:
    workers = httpx.get(f"{url}/v1/workers", trust_env=False).json()["items"]
    return any(worker["id"] == NAME and worker["state"] == "ready" for worker in workers)


def test_a_convolution_is_tuned_for_arm64_and_runs_there(service: tuple[str, str], tmp_path: Path) -> None:
    url, address = service
    try:
        root = arm64.make()
    except arm64.Unavailable as error:
        pytest.skip(str(error))
    worker = arm64.start(
        root,
        ["/usr/bin/python3", "-m", "worker", "--server", address, "--name", NAME, "--threads", "1"],
        # Emulated code takes its time.
        {"TUNEFARM_WORKER_START_TIMEOUT_S": "600", "TUNEFARM_WORKER_BUILD_TIMEOUT_S": "300"},
    )
    try:
        wait_until(lambda: worker.poll() is not None or ready(url), 600)
        assert worker.poll() is None, worker.communicate()[0]
        onnx.save(convolution(), tmp_path / "conv.onnx")
        command = [sys.executable, "-m", "tunefarm", "tune", "conv.onnx", "--server", url, "--trials", "4"]
        tuned = subprocess.run(
            [*command, "--json"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(arm64.CHECKOUT)},
            capture_output=True,
            text=True,
        )
    finally:
        worker.terminate()
        output = worker.communicate(timeout=60)[0]
    assert tuned.returncode == 0, tuned.stderr + output
    result = json.loads(tuned.stdout)
    assert result["job"]["state"] == "done"
    assert all(task["best_s"] for task in result["tasks"] if task["covered"])
    computes_the_same(root, tmp_path)


def computes_the_same(root: Path, folder: Path) -> None:
    library = (folder / "conv-tuned" / "model.so").read_bytes()
    assert machine_of(library) == "aarch64"
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

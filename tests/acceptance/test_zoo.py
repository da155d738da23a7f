"""Small networks of the kinds that people bring are tuned and published, and compute what ONNX says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
import tvm_ffi
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel
from tvm import relax

from compiler.importing.spec import TensorSpec
from compiler.packaging.artifact import unpack
from core.job import JobState
from examples import make_models, zoo
from tests.processes import service, worker
from tunefarm.client import Client, JobRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# Of each kind of well-known network, the one that exercises the most.
WELL_KNOWN = ("efficientnet_b0", "dcgan", "vit_b16")
TRIALS = 12
# Differences of values around one, by the coarsest rounding that a network goes through.
TOLERANCES = {"quantized": 0.051, "half": 2e-3, "brain_float": 2e-2}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One stack for all networks: what it learns of one helps the next."""
    with (
        service(tmp_path_factory.mktemp("zoo")) as farm,
        worker(farm, "own", "--threads", "2"),
        Client(farm.url) as found,
    ):
        yield found


@pytest.mark.parametrize("name", [*zoo.ZOO, *WELL_KNOWN])
def test_a_network_is_tuned_and_right(client: Client, tmp_path: Path, name: str) -> None:
    model = zoo.make(name) if name in zoo.ZOO else make_models.make(name, tiny=True)
    path = tmp_path / f"{name}.onnx"
    onnx.save(model, path)
    submitted = client.submit(JobRequest(client.upload(path).sha256, TRIALS))
    for _ in client.events(submitted.id):
        pass
    job = client.job(submitted.id)
    assert job.state is JobState.DONE, job.error
    assert "wrong_result" not in job.message, "it isn't what TVM's own build computes"
    client.download(job.id, tmp_path / "tuned.tar")
    library, manifest = unpack((tmp_path / "tuned.tar").read_bytes())
    assert [entry.name for entry in manifest.tasks if entry.trace is None] == []
    feeds = _feeds(manifest.inputs)
    expected = _expected(model, feeds)
    actual = _run(library, feeds, tmp_path)
    for wanted, found in zip(expected, actual, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=TOLERANCES.get(name, 1e-3))


def _expected(model: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """Ask ONNX Runtime, or ONNX's reference for types that it has no kernels of."""
    try:
        session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except NoKernel:
        return list(ReferenceEvaluator(model).run(None, dict(feeds)))
    return list(session.run(None, dict(feeds)))


def _feeds(inputs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    """Return normally distributed floats; 0 and 1 as ids, steps and masks."""
    rng = np.random.default_rng(1)
    return {
        spec.name: rng.standard_normal(spec.shape, np.float32)
        if spec.dtype == "float32"
        else rng.integers(0, 2, spec.shape).astype(spec.dtype)
        for spec in inputs
    }


def _run(library: bytes, feeds: Mapping[str, NDArray[Any]], folder: Path) -> list[NDArray[Any]]:
    (folder / "model.so").write_bytes(library)
    machine = relax.VirtualMachine(tvm_ffi.load_module(str(folder / "model.so")), tvm.cpu())
    outputs = machine["main"](*map(tvm.runtime.tensor, feeds.values()))
    return [output.numpy() for output in ([outputs] if hasattr(outputs, "numpy") else outputs)]

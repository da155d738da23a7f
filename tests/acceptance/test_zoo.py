"""Tune and publish small versions of common networks, and compare their outputs with ONNX."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from benchmarks import zoo
from benchmarks.timing.contestants import ProcessContestant, TvmLibrary
from benchmarks.timing.deviation import random_inputs
from compiler.packaging.artifact import unpack
from core.job import JobState
from tests.processes import service, worker
from tunefarm.client import Client, JobRequest

pytestmark = [pytest.mark.slow_lane(seconds=13), pytest.mark.timeout(900)]
TRIALS = 8


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One stack for all networks, so that each uses the cost model of the others."""
    with (
        service(tmp_path_factory.mktemp("zoo")) as farm,
        worker(farm, "own", "--threads", "2"),
        Client(farm.url) as found,
    ):
        yield found


@pytest.mark.parametrize("name", zoo.NETWORKS)
def test_a_network_is_tuned_and_right(client: Client, tmp_path: Path, name: str) -> None:
    model, path = zoo.make(name), tmp_path / f"{name}.onnx"
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
    (tmp_path / "model.so").write_bytes(library)
    inputs = random_inputs([(spec.shape, spec.dtype) for spec in manifest.inputs], 1)
    with ProcessContestant(TvmLibrary(tmp_path / "model.so"), 2, inputs) as running:
        found = running.outputs(inputs)
    feeds = {spec.name: array for spec, array in zip(manifest.inputs, inputs, strict=True)}
    assert zoo.difference(name, found, zoo.expected(model, feeds)) == ""

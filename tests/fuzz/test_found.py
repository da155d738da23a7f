"""Regression tests for the bugs that fuzzing has found."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import numpy as np
import onnx
import pytest

from compiler.importing.model import read_onnx
from compiler.importing.spec import ModelError
from proto import fleet_pb2 as pb
from tests.integration.server.conftest import Service, Worker, launch
from tests.onnx_models import Builder


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service, stop = launch(tmp_path_factory.mktemp("service"))
    yield service
    stop()


@pytest.mark.parametrize("name", ["x" * 100_000, "\U0001f600" * 10_000, "\0" * 5000])
def test_a_name_of_any_length_is_not_found(service: Service, name: str) -> None:
    """The details of a status travel as a header of at most a few kilobytes."""
    for call in (
        lambda: service.fleet.GetWorkload(pb.WorkloadRequest(workload_hash=name), timeout=10),
        lambda: list(service.fleet.GetBlob(pb.BlobRequest(sha256=name), timeout=10)),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call()
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "-Infinity"])
def test_a_tokens_lifetime_is_a_number(service: Service, seconds: str) -> None:
    """NaN is not more than a century, and a token that expires at NaN never does."""
    body = f'{{"name": "x", "scopes": ["read"], "expires_after_s": {seconds}}}'
    answer = service.http.post("/v1/tokens", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert "expires_after_s" in answer.json()["detail"]


def test_imported_latencies_have_an_upper_limit(service: Service) -> None:
    """The median of such times is infinite, and the OpenAPI document says that a latency is finite."""
    Worker(service.fleet).call()
    record = {"workload": "abc", "trace": "[[],[]]", "run_s": [1.7e308, 1.7e308], "target": "{}"}
    body = {"workloads": [{"hash": "abc", "module_json": "{}"}], "records": [record]}
    answer = service.http.post("/v1/schedules/import", json=body)
    assert answer.status_code == 422
    assert "run_s" in answer.json()["detail"]


def test_a_tensor_of_negative_extent_is_our_own_error() -> None:
    b = Builder()
    less = b.op("Tile", b.constant(np.ones(1, np.float32)), b.constant(np.array([-5])))
    with pytest.raises(ModelError, match=r"operator Tile .* of node 'tile0' can't be imported: .*negative"):
        read_onnx(b.model({"input": [1]}, {less: [5], b.op("Relu", "input"): [1]}), {})


def test_an_output_of_several_tensors_is_our_own_error() -> None:
    b = Builder()
    data = b.model({"input": [1]}, {b.op("SequenceConstruct", "input", "input"): [1]})
    with pytest.raises(ModelError, match=r"operator SequenceConstruct .* of node .* can't be imported"):
        read_onnx(data, {})


def test_weights_that_hold_too_many_numbers_are_our_own_error() -> None:
    b = Builder()
    data = b.model({"input": [2]}, {b.op("Add", "input", b.constant(np.ones(2, np.float32))): [2]})
    model = onnx.load_from_string(data)
    model.graph.initializer[0].dims[0] = 1
    with pytest.raises(ModelError, match="the model isn't valid ONNX: weight 'w0': its values can't be read"):
        read_onnx(model.SerializeToString(), {})


def test_a_constant_of_many_gigabytes_is_our_own_error() -> None:
    b = Builder()
    ends = [b.constant(np.array(end, np.int64)) for end in (0, 1 << 40, 1)]
    data = b.model({"input": [1]}, {b.op("Range", *ends): [1 << 40], b.op("Relu", "input"): [1]})
    with pytest.raises(
        ModelError, match=r"operator Range .* of node 'range0' can't be imported: it computes a constant of"
    ):
        read_onnx(data, {})

"""The example for Triton Inference Server runs a compiled model.

Triton provides the module `triton_python_backend_utils`, which no package index has. A stand-in has the
classes and the function that the example calls, with the signatures of Triton's Python backend.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tunefarm_runtime import LoadError, load

from tests.compiled_models import compile_model
from tests.onnx_models import residual

REPOSITORY = Path(__file__).parents[3] / "examples" / "triton"


class Tensor:
    def __init__(self, name: str, numpy_array: Any) -> None:
        self._name, self._array = name, numpy_array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array


@dataclass
class TritonError:
    message: str


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor] = field(default_factory=list)
    error: TritonError | None = None


@dataclass
class Request:
    tensors: list[Tensor]


def get_input_tensor_by_name(request: Request, name: str) -> Tensor | None:
    return next((tensor for tensor in request.tensors if tensor.name() == name), None)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An instance of the example's backend, before `initialize`."""
    triton: Any = ModuleType("triton_python_backend_utils")
    triton.Tensor, triton.TritonError = Tensor, TritonError
    triton.InferenceResponse, triton.get_input_tensor_by_name = InferenceResponse, get_input_tensor_by_name
    monkeypatch.setitem(sys.modules, triton.__name__, triton)
    spec = importlib.util.spec_from_file_location("triton_model", REPOSITORY / "resnet18/1/model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TritonPythonModel()


def arguments(folder: Path, trusted: str = "") -> dict[str, str]:
    """What Triton gives `initialize`, for a repository whose version 1 is `folder`."""
    config = {"parameters": {"trusted": {"string_value": trusted}}}
    return {
        "model_repository": str(folder.parent),
        "model_version": folder.name,
        "model_config": json.dumps(config),
    }


def test_requests_are_answered_each_by_itself(backend: Any, tmp_path: Path) -> None:
    tuned = compile_model(residual(), tmp_path / "resnet18-tuned")
    shutil.copytree(REPOSITORY / "resnet18", tmp_path / "resnet18")
    folder = tmp_path / "resnet18" / "1"
    for file in tuned.iterdir():
        shutil.copy(file, folder)
    backend.initialize(arguments(folder))
    image = np.random.default_rng(0).standard_normal((1, 3, 8, 8), dtype=np.float32)
    good = Request([Tensor("other", image), Tensor("input", image)])
    bad = [
        Request([]),
        Request([Tensor("input", image.astype(np.float64))]),
        Request([Tensor("input", image[:, :, :4])]),
    ]
    first, *wrong, last = backend.execute([good, *bad, good])
    (expected,) = load(folder)(image)
    for response in (first, last):
        assert response.error is None
        (tensor,) = response.output_tensors
        assert tensor.name() == load(folder).outputs[0].name
        np.testing.assert_array_equal(tensor.as_numpy(), expected)
    causes = ("is no array", "is float64", "compiled for")
    for response, cause in zip(wrong, causes, strict=True):
        assert cause in response.error.message


def test_a_model_that_is_not_signed_is_not_served(backend: Any, tmp_path: Path) -> None:
    folder = compile_model(residual(), tmp_path / "net" / "1")
    with pytest.raises(LoadError, match="the model isn't signed"):
        backend.initialize(arguments(folder, "ed25519:" + "A" * 43 + "="))


def test_the_configuration_fits_the_network_of_the_examples() -> None:
    from examples.make_models import make

    graph = make("resnet18").graph
    text = (REPOSITORY / "resnet18/config.pbtxt").read_text()
    for value, kind in ((graph.input[0], "input"), (graph.output[0], "output")):
        dims = ", ".join(str(one.dim_value) for one in value.type.tensor_type.shape.dim)
        found = re.search(rf'{kind} \[ {{ name: "(.*?)", data_type: (\w+), dims: \[ (.*?) \]', text)
        assert found is not None
        assert found.groups() == (value.name, "TYPE_FP32", dims)

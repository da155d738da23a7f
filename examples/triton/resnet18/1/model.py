"""Run a compiled model in Triton Inference Server. `model.so` and `manifest.json` are beside this file.

Triton's Python needs `tunefarm-runtime`, or `tunefarm-runtime[trusted]` to check signatures.
"""

import json
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils  # Triton provides this module
import tunefarm_runtime


class TritonPythonModel:
    """One instance of the model, in its own process."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the compiled model. If this raises, Triton shows the error as the reason why the model isn't
        ready.
        """
        folder = Path(args["model_repository"]) / args["model_version"]
        parameters = json.loads(args["model_config"]).get("parameters", {})
        trusted = parameters.get("trusted", {}).get("string_value") or None
        self.model = tunefarm_runtime.load(folder, trusted=trusted)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return a response for each request. An error in one request doesn't fail the others."""
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        try:
            tensors = (pb_utils.get_input_tensor_by_name(request, spec.name) for spec in self.model.inputs)
            arrays = [None if tensor is None else tensor.as_numpy() for tensor in tensors]
            outputs = self.model.to_numpy(self.model(*arrays))
        except tunefarm_runtime.RunError as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        named = zip(self.model.outputs, outputs, strict=True)
        return pb_utils.InferenceResponse([pb_utils.Tensor(spec.name, array) for spec, array in named])

"""TFLite files."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from compiler.importing.formats.model_file import Content, check_shapes, unique_names
from compiler.importing.formats.tflite_check import check_tables, operator_name
from compiler.importing.model import RelaxModel, checked_model
from compiler.importing.node_names import NodeNames, readable
from compiler.importing.reasons import plain_reason
from compiler.importing.spec import ModelError, NoReference, Shape, TensorSpec, first_line

Array = NDArray[Any]


@dataclass(frozen=True)
class TfliteModel:
    """A TFLite model. `content` is its file."""

    content: bytes
    model: Any
    inputs: tuple[TensorSpec, ...]
    output_names: tuple[str, ...]

    def to_relax(self) -> RelaxModel:
        from tvm.relax.frontend.tflite import from_tflite

        from compiler.importing.formats.tflite_operators import Converter

        node_names = NodeNames()
        try:
            module = from_tflite(self.model, op_converter=partial(Converter, node_names=node_names))
            main = module["main"].without_attr("params")
            module.update_func(module.get_global_var("main"), main)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"the TFLite model can't be imported: {plain_reason(error)}. Convert it to ONNX"
            ) from error
        return checked_model(module, self.inputs, self.output_names, node_names=node_names.names)

    def describe_node(self, name: str) -> str:
        """Describe the node of the file that the imported model's `node_names` name so."""
        graph = self.model.Subgraphs(0)
        for number in range(graph.OperatorsLength()):
            op = graph.Operators(number)
            written = [graph.Tensors(tensor).Name() or b"" for tensor in op.OutputsAsNumpy()]
            if name in map(readable, written):
                return f"operator {number} ({operator_name(self.model, op)}), which computes '{name}',"
        return f"the operator that computes '{name}'"

    def operators(self) -> list[tuple[str, bool]]:
        """Return each operator's name, and whether it is imported."""
        from tvm.relax.frontend.tflite.tflite_frontend import ExprTable

        from compiler.importing.formats.tflite_operators import Converter

        converter = Converter(self.model, self.model.Subgraphs(0), ExprTable(), None)
        return [(name, error is None) for _, name, error in converter.checked_operators()]

    def compute(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the outputs as LiteRT computes them. Raises NoReference."""
        try:
            litert = importlib.import_module("ai_edge_litert.interpreter")
        except ImportError as error:
            raise NoReference("LiteRT isn't installed (pip install 'tunefarm[tflite]')") from error
        try:
            # The default adds XNNPACK, which has errors: its exp(NaN) is 0.
            interpreter = litert.Interpreter(
                model_content=self.content,
                num_threads=1,
                experimental_op_resolver_type=litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            )
            interpreter.allocate_tensors()
            for detail, spec in zip(interpreter.get_input_details(), self.inputs, strict=True):
                interpreter.set_tensor(detail["index"], inputs[spec.name])
            interpreter.invoke()
        except (RuntimeError, ValueError) as error:
            raise NoReference(f"LiteRT can't run it ({first_line(error)})") from error
        return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]


def read(content: Content, shapes: Mapping[str, Shape]) -> TfliteModel:
    try:
        tflite = importlib.import_module("tflite")
    except ImportError as error:
        raise ModelError(
            "TFLite models are read with the package tflite, which the scheduler lacks: install it there "
            "(pip install 'tunefarm[tflite]'), or convert the model to ONNX"
        ) from error
    data = bytes(content)
    model = tflite.Model.GetRootAsModel(data, 0)
    check_tables(model)
    graph = model.Subgraphs(0)
    tensors = [graph.Tensors(number) for number in range(graph.TensorsLength())]
    inputs = tuple(
        _spec(tflite, tensors[graph.Inputs(number)], shapes) for number in range(graph.InputsLength())
    )
    outputs = [tensors[graph.Outputs(number)].Name() or b"" for number in range(graph.OutputsLength())]
    names = unique_names([name.decode() for name in outputs])
    check_shapes(inputs, shapes)
    return TfliteModel(data, model, inputs, names)


def _spec(tflite: Any, tensor: Any, shapes: Mapping[str, Shape]) -> TensorSpec:
    """Return an input with the shape that the file stores. By default, LiteRT also runs the model with this
    shape."""
    types = {number: name for name, number in vars(tflite.TensorType).items() if isinstance(number, int)}
    dtype, name = types.get(tensor.Type(), "").lower(), (tensor.Name() or b"").decode()
    if dtype not in _DTYPES:
        raise ModelError(
            f"input '{name}' holds {dtype or 'an unknown type'}, which isn't supported: convert the model "
            "with another type"
        )
    shape = tuple(tensor.ShapeAsNumpy().tolist() if tensor.ShapeLength() else [])
    signature = tensor.ShapeSignatureAsNumpy().tolist() if tensor.ShapeSignatureLength() else []
    if -1 in signature and shapes.get(name, shape) != shape:
        raise ModelError(
            f"input '{name}' has dynamic dimensions {signature}, but the file stores shapes for {shape} "
            f"only: convert the model with the shape {shapes[name]}"
        )
    return TensorSpec(name, shape, dtype)


_DTYPES = {"float16", "float32", "int8", "int16", "int32", "int64", "uint8", "bool"}

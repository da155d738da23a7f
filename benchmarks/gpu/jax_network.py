"""Networks by JAX on its default device: an ONNX file's operators as JAX functions, compiled by XLA."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.timing.contestants import Arrays, Bind

JAX = "JAX"
# The packages with which JAX runs on NVIDIA's GPUs.
PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
# JAX's names of the precision of products, by the element type of a network's products.
PRECISIONS = {"float32": "float32", "tf32": "tensorfloat32", "float16": "default"}
# Returns a node's result from its attributes and operands. An absent operand is None.
Operator: TypeAlias = Callable[..., Any]


def missing_jax() -> str:
    """Return why JAX isn't compared; "" if it is."""
    if importlib.util.find_spec("jax") is None:
        return "JAX is not installed"
    # It isn't imported here, because it would take the GPU's memory.
    return "" if any(map(importlib.util.find_spec, PLUGINS)) else "JAX is there, but no plugin of it for CUDA"


@dataclass(frozen=True)
class JaxNetwork:
    """An ONNX file whose products are computed in an `element_type`; a file in float16 is in that type."""

    path: Path
    element_type: str = "float32"
    platform: str = "cuda"

    def load(self, _threads: int) -> Bind:
        """Raises ValueError, which names the operators that no function here computes, and RuntimeError if
        JAX has no such platform."""
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # others use the GPU's memory, too
        import jax

        jax.config.update("jax_platforms", self.platform)
        jax.config.update("jax_default_matmul_precision", PRECISIONS[self.element_type])
        model = onnx.load(self.path)
        weights = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
        # Shapes, axes and indices are constants of the program. Other weights are its arguments.
        constants = {name: value for name, value in weights.items() if value.dtype == np.int64}
        placed = jax.device_put({name: one for name, one in weights.items() if name not in constants})
        run = jax.jit(_function(model.graph, constants))
        names = [one.name for one in model.graph.input if one.name not in weights]

        def bind(inputs: Arrays) -> Callable[[], Any]:
            given = {**placed, **jax.device_put(dict(zip(names, inputs, strict=True)))}
            return lambda: jax.block_until_ready(run(given))

        return bind


def _function(
    graph: onnx.GraphProto, constants: Mapping[str, Any]
) -> Callable[[Mapping[str, Any]], list[Any]]:
    """Return a function from the values of a graph's inputs and weights to its outputs."""
    operators = _operators()
    if missing := sorted({node.op_type for node in graph.node} - operators.keys()):
        raise ValueError(f"the JAX networks of this benchmark lack {', '.join(missing)}")
    steps = [
        (operators[node.op_type], _attributes(node), list(node.input), node.output[0]) for node in graph.node
    ]
    outputs = [one.name for one in graph.output]

    def run(given: Mapping[str, Any]) -> list[Any]:
        values = {**constants, **given, "": None}
        for operator, attributes, names, output in steps:
            values[output] = operator(attributes, *(values[name] for name in names))
        return [values[name] for name in outputs]

    return run


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {one.name: helper.get_attribute_value(one) for one in node.attribute}


def _operators() -> dict[str, Operator]:
    """Return JAX's functions for the operators of `examples.make_models`, by ONNX's names."""
    from jax import lax, nn
    from jax import numpy as jnp

    def convolve(attributes: dict[str, Any], x: Any, weight: Any, bias: Any = None) -> Any:
        y = lax.conv_general_dilated(
            x,
            weight,
            attributes["strides"],
            _pads(attributes),
            rhs_dilation=attributes["dilations"],
            feature_group_count=attributes["group"],
        )
        return y if bias is None else y + bias.reshape(1, -1, *[1] * (y.ndim - 2))

    def convolve_transposed(attributes: dict[str, Any], x: Any, weight: Any) -> Any:
        # A convolution of the image with zeros between its pixels, by the mirrored kernel.
        kernel = jnp.flip(weight.swapaxes(0, 1), range(2, weight.ndim))
        pads = [
            (extent - 1 - low, extent - 1 - high)
            for extent, (low, high) in zip(weight.shape[2:], _pads(attributes), strict=True)
        ]
        ones = [1] * len(pads)
        return lax.conv_general_dilated(x, kernel, ones, pads, lhs_dilation=attributes["strides"])

    def normalize_batch(
        attributes: dict[str, Any], x: Any, scale: Any, bias: Any, mean: Any, variance: Any
    ) -> Any:
        factor = scale * lax.rsqrt(variance + attributes["epsilon"])
        shape = (1, -1, *[1] * (x.ndim - 2))
        return x * factor.reshape(shape) + (bias - mean * factor).reshape(shape)

    def normalize_layer(attributes: dict[str, Any], x: Any, scale: Any, bias: Any) -> Any:
        return nn.standardize(x, axis=attributes["axis"], epsilon=attributes["epsilon"]) * scale + bias

    def pool_maximum(attributes: dict[str, Any], x: Any) -> Any:
        window, strides = (1, 1, *attributes["kernel_shape"]), (1, 1, *attributes["strides"])
        pads = [(0, 0), (0, 0), *_pads(attributes)]
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, pads)

    def multiply(attributes: dict[str, Any], a: Any, b: Any, bias: Any) -> Any:
        return a @ (b.T if attributes["transB"] else b) + bias

    return {
        "Add": lambda _, a, b: a + b,
        "BatchNormalization": normalize_batch,
        "Cast": lambda attributes, x: x.astype(helper.tensor_dtype_to_np_dtype(attributes["to"])),
        "Clip": lambda _, x, low, high: jnp.clip(x, low, high),
        "Concat": lambda attributes, *parts: jnp.concatenate(parts, attributes["axis"]),
        "Conv": convolve,
        "ConvTranspose": convolve_transposed,
        "Div": lambda _, a, b: a / b,
        "Erf": lambda _, x: lax.erf(x),
        "Flatten": lambda attributes, x: x.reshape(math.prod(x.shape[: attributes["axis"]]), -1),
        "Gather": lambda attributes, x, indices: jnp.take(x, indices, attributes.get("axis", 0)),
        "Gemm": multiply,
        "GlobalAveragePool": lambda _, x: x.mean(range(2, x.ndim), keepdims=True),
        "LayerNormalization": normalize_layer,
        "MatMul": lambda _, a, b: a @ b,
        "MaxPool": pool_maximum,
        "Mul": lambda _, a, b: a * b,
        "Relu": lambda _, x: nn.relu(x),
        "Reshape": lambda _, x, shape: x.reshape(shape),
        "Softmax": lambda attributes, x: nn.softmax(x, attributes.get("axis", -1)),
        "Sub": lambda _, a, b: a - b,
        "Tanh": lambda _, x: jnp.tanh(x),
        "Transpose": lambda attributes, x: x.transpose(attributes["perm"]),
        "Unsqueeze": lambda _, x, axes: jnp.expand_dims(x, tuple(map(int, axes))),
    }


def _pads(attributes: Mapping[str, Any]) -> Sequence[tuple[int, int]]:
    pads = attributes.get("pads") or [0] * 2 * len(attributes["strides"])
    return list(zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True))

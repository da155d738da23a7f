"""Workloads that importers write differently from the suite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tvm import te, topi

from compiler.importing.model import extract_tasks, fuse, read_onnx
from compiler.measuring.expected import Expected
from compiler.measuring.rounding import Rounding
from compiler.variants.choice import VariantModel
from compiler.workload import from_json
from core.job import TF32
from tests.devices import GPU
from tests.floats import in_tf32
from tests.onnx_models import Builder
from tests.suite import Case


class ImportedSoftmax(Case):
    """A softmax whose maximum starts with minus infinity."""

    def __str__(self) -> str:
        return f"imported {super().__str__()}"

    def module(self) -> tvm.IRModule:
        builder = Builder()
        model = builder.model({"x": self.shape}, {builder.op("Softmax", "x", axis=-1): None})
        [task] = extract_tasks(fuse(read_onnx(model, {}), GPU.target))
        return from_json(task.module_json)


class GeluProduct(Case):
    """A matrix product with a bias and a GELU, which reads the product twice. Its shape is n, m, k."""

    def __str__(self) -> str:
        return f"GELU of {super().__str__()}"

    def module(self) -> tvm.IRModule:
        n, m, depth = self.shape
        left, right = (
            te.placeholder(shape, self.dtype, name) for name, shape in (("X", (n, depth)), ("Y", (depth, m)))
        )
        bias = te.placeholder((m,), "float32", "B")
        k = te.reduce_axis((0, depth), "k")

        def product(i: Any, j: Any) -> Any:
            return te.sum(left[i, k].astype("float32") * right[k, j].astype("float32"), axis=k)

        summed = te.compute((n, m), product, "product")
        added = te.compute((n, m), lambda i, j: summed[i, j] + bias[j], "added")
        error = te.compute(
            (n, m), lambda i, j: te.erf(added[i, j] * te.const(math.sqrt(0.5), "float32")), "error"
        )
        halved = te.compute((n, m), lambda i, j: added[i, j] * te.const(0.5, "float32"), "halved")
        gelu = te.compute(
            (n, m), lambda i, j: halved[i, j] * (error[i, j] + te.const(1.0, "float32")), "gelu"
        )
        function = te.create_prim_func([left, right, bias, gelu])
        return tvm.IRModule({"main": function.with_attr("tirx.noalias", True)})

    def reference(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        left, right, bias = (one.astype(np.float64) for one in inputs)
        added = left @ right + bias
        return np.asarray(added * 0.5 * (1 + np.vectorize(math.erf)(added / math.sqrt(2))))


class JoinedAttention(Case):
    """An attention whose heads lie side by side in the result, as importers write it. Its shape is heads,
    queries, keys, width and whether it is masked.
    """

    def __str__(self) -> str:
        return f"joined {super().__str__()}"

    def module(self) -> tvm.IRModule:
        heads, queries, keys, width, masked = self.shape
        query = te.placeholder((self.batch, heads, queries, width), name="query")
        key = te.placeholder((self.batch, heads, width, keys), name="key")
        value = te.placeholder((self.batch, heads, keys, width), name="value")
        mask = te.placeholder((1, 1, 1, keys), name="mask")
        scores = topi.multiply(topi.nn.matmul(query, key), te.const(0.25, "float32"))
        weights = topi.nn.softmax(topi.add(scores, mask) if masked else scores)
        result = topi.transpose(topi.nn.matmul(weights, value), (0, 2, 1, 3))
        function = te.create_prim_func([query, key, value, *([mask] if masked else []), result])
        return tvm.IRModule({"main": function.with_attr("tirx.noalias", True)})

    def reference(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        query, key, value, *mask = (one.astype(np.float64) for one in inputs)
        scores = self.rounded(self.rounded(query @ key) * 0.25 + (mask[0] if mask else 0.0))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.asarray((weights @ value).transpose(0, 2, 1, 3))

    def rounded(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Return scores as the workload rounds them before the softmax."""
        return scores


class AttentionOfHalves(JoinedAttention):
    """A joined attention as the importer writes it for a GPU: products of float16 or bfloat16 are summed and
    the softmax is computed in float32, and their results are rounded.
    """

    def __str__(self) -> str:
        return f"halves of {super().__str__()}"

    @property
    def element_type(self) -> int:
        """ONNX's number of the type."""
        return TensorProto.DataType.Value({"float32": "FLOAT"}.get(self.dtype, self.dtype.upper()))

    def model(self) -> bytes:
        heads, queries, keys, width, masked = self.shape
        shapes = {
            "query": (self.batch, heads, queries, width),
            "key": (self.batch, heads, width, keys),
            "value": (self.batch, heads, keys, width),
            **({"mask": (1, 1, 1, keys)} if masked else {}),
        }
        nodes = [
            helper.make_node("MatMul", ["query", "key"], ["scores"]),
            helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
            *([helper.make_node("Add", ["scaled", "mask"], ["added"])] if masked else []),
            helper.make_node("Softmax", ["added" if masked else "scaled"], ["weights"], axis=-1),
            helper.make_node("MatMul", ["weights", "value"], ["values"]),
            helper.make_node("Transpose", ["values"], ["result"], perm=[0, 2, 1, 3]),
        ]
        own = self.element_type
        inputs = [helper.make_tensor_value_info(name, own, shape) for name, shape in shapes.items()]
        result = helper.make_tensor_value_info("result", own, (self.batch, queries, heads, width))
        scale = helper.make_tensor("scale", own, [], [0.25])
        graph = helper.make_graph(nodes, "attention", inputs, [result], [scale])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return bytes(model.SerializeToString())

    def module(self) -> tvm.IRModule:
        [task] = extract_tasks(fuse(read_onnx(self.model(), {}), GPU.target))
        return from_json(task.module_json)

    def reference(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        query, key, *mask, value = inputs  # in the order in which they are read
        return super().reference([query, key, value, *mask])

    def rounded(self, scores: NDArray[Any]) -> NDArray[Any]:
        return scores.astype(np.float16).astype(np.float64) if self.dtype == "float16" else scores


class InTf32(AttentionOfHalves):
    """An attention of float32 with products in TF32."""

    def __str__(self) -> str:
        return f"TF32 in {super().__str__()}"

    def module(self) -> tvm.IRModule:
        tasks = VariantModel.of(read_onnx(self.model(), {}), GPU.target, tf32=True).tasks()
        (task,) = (task for task in tasks if task.variant == TF32)
        return from_json(task.module_json)

    def difference(self, actual: NDArray[Any], expected: NDArray[Any]) -> str:
        rounding = Rounding.of(self.module()["main"])
        return Expected.of(expected.astype(np.float32), None, rounding).difference(actual)


def _attended_in_tf32(
    query: NDArray[Any], key: NDArray[Any], mask: NDArray[Any] | float, value: NDArray[Any]
) -> NDArray[Any]:
    """Return weighted values, whose heads aren't joined, as tensor cores round the factors."""
    query, key, value = (in_tf32(one).astype(np.float64) for one in (query, key, value))
    scores = query @ key * 0.25 + mask
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = in_tf32((weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32))
    return np.asarray(weights.astype(np.float64) @ value)


class AttentionInTf32(InTf32):
    """A joined attention in TF32."""

    def reference(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        query, key, *mask, value = inputs
        return _attended_in_tf32(query, key, mask[0] if mask else 0.0, value).transpose(0, 2, 1, 3)


class GroupedAttention(AttentionOfHalves):
    """A joined attention of halves whose heads share keys and values in groups of four, as exporters repeat
    them. The mask has a row for each query.
    """

    group = 4

    def __str__(self) -> str:
        return f"grouped {super().__str__()}"

    def model(self) -> bytes:
        heads, queries, keys, width, masked = self.shape
        shared = heads // self.group
        shapes = {
            "query": (self.batch, heads, queries, width),
            "key": (self.batch, shared, width, keys),
            "value": (self.batch, shared, keys, width),
            **({"mask": (1, 1, queries, keys)} if masked else {}),
        }
        constants = {"axis": np.array([2], np.int64)}
        nodes = []
        for name, matrix in (("key", (width, keys)), ("value", (keys, width))):
            constants[f"{name} groups"] = np.array([self.batch, shared, self.group, *matrix])
            constants[f"{name} heads"] = np.array([self.batch, heads, *matrix])
            nodes += [
                helper.make_node("Unsqueeze", [name, "axis"], [f"{name} of all"]),
                helper.make_node("Expand", [f"{name} of all", f"{name} groups"], [f"{name} of groups"]),
                helper.make_node("Reshape", [f"{name} of groups", f"{name} heads"], [f"{name}s"]),
            ]
        nodes += [
            helper.make_node("MatMul", ["query", "keys"], ["scores"]),
            helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
            *([helper.make_node("Add", ["scaled", "mask"], ["added"])] if masked else []),
            helper.make_node("Softmax", ["added" if masked else "scaled"], ["weights"], axis=-1),
            helper.make_node("MatMul", ["weights", "values"], ["weighted"]),
            helper.make_node("Transpose", ["weighted"], ["result"], perm=[0, 2, 1, 3]),
        ]
        own = self.element_type
        inputs = [helper.make_tensor_value_info(name, own, shape) for name, shape in shapes.items()]
        result = helper.make_tensor_value_info("result", own, (self.batch, queries, heads, width))
        weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
        weights.append(helper.make_tensor("scale", own, [], [0.25]))
        graph = helper.make_graph(nodes, "attention", inputs, [result], weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return bytes(model.SerializeToString())

    def module(self) -> tvm.IRModule:
        tasks = extract_tasks(fuse(read_onnx(self.model(), {}), GPU.target))
        (task,) = (task for task in tasks if "softmax" in task.name)
        return from_json(task.module_json)

    def reference(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        key, query, *mask, value = (one.astype(np.float64) for one in inputs)
        scores = query @ key[:, :, None] * 0.25 + (mask[0] if mask else 0.0)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.asarray((weights @ value[:, :, None]).transpose(0, 3, 1, 2, 4))


class GroupedAttentionInTf32(InTf32, GroupedAttention):
    """A grouped attention in TF32."""

    def reference(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        key, query, *mask, value = inputs
        attended = _attended_in_tf32(query, key[:, :, None], mask[0] if mask else 0.0, value[:, :, None])
        return attended.transpose(0, 3, 1, 2, 4)

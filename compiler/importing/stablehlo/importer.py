"""Import the operations of a StableHLO program one after the other, as relax operators on static shapes.

Functions are inlined and loops are unrolled: every value is known by its shape at least. A broadcast is kept
as a broadcast. A bias reaches relax's operators unbroadcast, and a constant isn't repeated in memory.

    %1 = stablehlo.broadcast_in_dim %bias, dims = [3] : (tensor<8xf32>) -> tensor<1x4x4x8xf32>
    %2 = stablehlo.add %0, %1
->
    lv1 = add(lv, reshape(bias, (1, 1, 1, 8)))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from compiler.constants.fold import MAX_CONSTANT_BYTES
from compiler.importing.onnx_file import MAX_NODES
from compiler.importing.onnx_graph import Graph
from compiler.importing.operators import CONVERTERS as ONNX_CONVERTERS
from compiler.importing.reasons import plain_reason
from compiler.importing.spec import ModelError, Shape, TensorSpec
from compiler.importing.stablehlo.attributes import Array, mlir, tensor_type
from compiler.importing.values import UnsupportedOperator, Value, numpy_dtype

MAX_DEPTH = 64
# Why operations aren't supported, and what to do instead.
_UNREAD_ADVICE = "it isn't supported: leave it out, or export the model as ONNX"
_UNREAD: Mapping[str, str] = {
    **dict.fromkeys(
        ("stablehlo.rng", "stablehlo.rng_bit_generator"),
        "it draws random numbers, which a library doesn't: make the numbers an input of the program",
    ),
    **dict.fromkeys(
        ("stablehlo.complex", "stablehlo.real", "stablehlo.imag", "stablehlo.fft"),
        "complex numbers aren't supported: compute real and imaginary parts as two tensors, and Fourier "
        "transforms as products with a constant matrix",
    ),
    **dict.fromkeys(
        ("stablehlo.cholesky", "stablehlo.triangular_solve"),
        "decompositions of matrices aren't supported: compute it outside, and make the result an input",
    ),
    **dict.fromkeys(
        (
            *("stablehlo.all_gather", "stablehlo.all_reduce", "stablehlo.all_to_all"),
            *(
                "stablehlo.collective_broadcast",
                "stablehlo.collective_permute",
                "stablehlo.cross-replica-sum",
            ),
            *("stablehlo.partition_id", "stablehlo.reduce_scatter", "stablehlo.replica_id"),
            *("stablehlo.infeed", "stablehlo.outfeed", "stablehlo.recv", "stablehlo.send"),
        ),
        "it communicates with other devices: export the program for one device",
    ),
    **dict.fromkeys(
        ("stablehlo.tuple", "stablehlo.get_tuple_element"),
        "tuples aren't supported: return several results, and pass several arguments",
    ),
    **dict.fromkeys(
        ("stablehlo.uniform_quantize", "stablehlo.uniform_dequantize"),
        "quantized types aren't supported: compute in integers, or export the model as TFLite or ONNX",
    ),
}
MAX_PLACE_CHARS = 120


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a static shape. `value` broadcasts to it: each extent is the shape's, or one."""

    value: Value
    shape: Shape

    @classmethod
    def of(cls, value: Value) -> Tensor:
        return cls(value, value.shape)

    @classmethod
    def constant(cls, array: Array, shape: Shape | None = None) -> Tensor:
        return cls(Value(constant=array), tuple(array.shape) if shape is None else shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> str:
        return self.value.dtype

    @property
    def array(self) -> Array | None:
        """The elements of a constant, which may take less memory than their number says."""
        constant = self.value.constant
        return None if constant is None else np.broadcast_to(constant, self.shape)

    @property
    def scalar(self) -> int | float | bool | None:
        """The number of a constant whose elements are all equal."""
        constant = self.value.constant
        return None if constant is None or constant.size != 1 else constant.reshape(()).item()


@dataclass(frozen=True, eq=False)
class ConcatenatedTensors:
    """Tensors that will be concatenated along an axis. A loop that fills a tensor of zeros makes them."""

    parts: tuple[Tensor, ...]
    axis: int

    @property
    def shape(self) -> Shape:
        first = self.parts[0].shape
        total = sum(part.shape[self.axis] for part in self.parts)
        return (*first[: self.axis], total, *first[self.axis + 1 :])

    @property
    def dtype(self) -> str:
        return self.parts[0].dtype


TensorOrParts = Tensor | ConcatenatedTensors
# Returns what the operation computes, in order.
Converter = Callable[["Importer", Any], "Sequence[TensorOrParts] | TensorOrParts"]


def functions_of(module: Any) -> dict[str, Any]:
    """Return the functions that a program defines, by name, without functions that it only declares."""
    operations = [op for op in module.body.operations if op.operation.name == "func.func"]
    return {str(op.attributes["sym_name"].value): op for op in operations if op.regions[0].blocks}


class Importer:
    """The relax function that is being made. Converters write into it."""

    def __init__(self, module: Any, converters: Mapping[str, Converter]) -> None:
        self.graph = Graph(ONNX_CONVERTERS)
        self._converters = converters
        self._functions = functions_of(module)
        self._values: dict[Any, TensorOrParts] = {}
        self._rows: dict[tuple[int, int], tuple[Tensor, list[Tensor]]] = {}
        self._depth = 0
        self.in_loop = False
        self._count = 0

    def module(self, inputs: Sequence[TensorSpec], names: Sequence[str]) -> tvm.IRModule:
        """Return the module for `main`, whose parameters get these names. Raises ModelError, which names the
        operation that can't be imported."""
        params = [
            relax.Var(name, relax.TensorType(spec.shape, spec.dtype))
            for name, spec in zip(names, inputs, strict=True)
        ]
        builder = self.graph.builder
        with builder.function("main", params=params):
            with builder.dataflow():
                # What holds nothing is known.
                given = [
                    Tensor.of(
                        Value(
                            np.empty(spec.shape, numpy_dtype(spec.dtype)) if 0 in spec.shape else None, param
                        )
                    )
                    for spec, param in zip(inputs, params, strict=True)
                ]
                results = [self.full(self.joined(result)).expr for result in self.call("main", given)]
                output = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
            builder.emit_func_output(output)
        # Of what is recognised by its last operation, the others are left over.
        module = relax.transform.DeadCodeElimination()(builder.get())
        module["main"] = module["main"].with_attr("num_input", len(params))
        return module

    def call(self, name: str, arguments: Sequence[TensorOrParts]) -> list[TensorOrParts]:
        """Import the body of a function."""
        if name not in self._functions:
            raise UnsupportedOperator(f"it calls a function '{name}', which the program doesn't define")
        return self.region(self._functions[name].regions[0], arguments)

    def region(self, region: Any, arguments: Sequence[TensorOrParts]) -> list[TensorOrParts]:
        """Import the operations of a region; return what it ends with."""
        if len(region.blocks) != 1:
            raise UnsupportedOperator("it branches between blocks of operations, which isn't supported")
        block = region.blocks[0]
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ModelError(f"functions and loops of the program are nested more than {MAX_DEPTH} deep")
        self._values.update(zip(block.arguments, arguments, strict=True))
        *operations, end = [op.operation for op in block.operations]
        for op in operations:
            self._operation(op)
        self._depth -= 1
        return [self._values[value] for value in end.operands]

    def apply(self, region: Any, *numbers: Any) -> list[Any]:
        """Return what a region of scalars computes of these numbers; None for what they don't determine."""
        types = [tensor_type(argument.type)[1] for argument in region.blocks[0].arguments]
        given = [
            Tensor.constant(np.array(number, numpy_dtype(dtype)))
            for number, dtype in zip(numbers, types, strict=True)
        ]
        return [self.joined(result).scalar for result in self.region(region, given)]

    def given(self, op: Any) -> list[TensorOrParts]:
        return [self._values[value] for value in op.operands]

    def operands(self, op: Any) -> list[Tensor]:
        return [self.joined(given) for given in self.given(op)]

    def tensor(self, value: Any) -> Tensor:
        return self.joined(self._values[value])

    def joined(self, given: TensorOrParts) -> Tensor:
        if isinstance(given, Tensor):
            return given
        values = [self.full(part) for part in given.parts]
        joined = values[0] if len(values) == 1 else self.graph.op("Concat", *values, axis=given.axis)
        return Tensor.of(joined)

    def rows(self, tensor: Tensor, axis: int) -> list[Tensor]:
        """Return the parts of a tensor of one element along an axis. What a loop reads row by row is split
        once: then all of its rounds are the same subgraphs."""
        key = (id(tensor), axis)
        if key not in self._rows:
            value = self.full(tensor)
            count = value.shape[axis]
            parts = self.graph.ops("Split", count, value, np.ones(count, np.int64), axis=axis)
            # The tensor is kept, so that no other gets its id.
            self._rows[key] = tensor, [Tensor.of(part) for part in parts]
        return self._rows[key][1]

    def full(self, tensor: Tensor) -> Value:
        """Return a tensor with every element in its place."""
        value = tensor.value
        if value.shape == tensor.shape:
            return value
        array = tensor.array
        if array is not None and array.nbytes <= MAX_CONSTANT_BYTES:
            return Value(constant=np.ascontiguousarray(array))
        return self.graph.emit(relax.op.broadcast_to(value.expr, tensor.shape))

    def emit(self, expr: Any) -> Tensor:
        return Tensor.of(self.graph.emit(expr))

    def elementwise(
        self,
        tensors: Sequence[Tensor],
        shape: Shape,
        on_arrays: Callable[..., Any],
        on_exprs: Callable[..., Any],
        dtype: str,
    ) -> Tensor:
        """Compute a tensor of a shape and type element by element: with NumPy if all operands are constants,
        else with relax."""
        raised = [_raised(tensor, len(shape)) for tensor in tensors]
        arrays = [value.constant for value in raised]
        known = [array for array in arrays if array is not None]
        size = math.prod(np.broadcast_shapes(*(value.shape for value in raised)))
        if len(known) == len(arrays) and size * 8 <= MAX_CONSTANT_BYTES:
            with np.errstate(all="ignore"):
                return Tensor.constant(np.asarray(on_arrays(*known)).astype(numpy_dtype(dtype)), shape)
        return Tensor(self.graph.emit(on_exprs(*map(_operand, raised))), shape)

    def _operation(self, op: Any) -> None:
        self._count += 1
        if self._count > MAX_NODES:
            raise ModelError(
                f"the functions and loops of the program stand for more than {MAX_NODES} operations"
            )
        with _naming(op):
            converter = self._converters.get(op.name)
            if converter is None:
                raise UnsupportedOperator(_UNREAD.get(op.name, _UNREAD_ADVICE))
            wanted = [tensor_type(result.type) for result in op.results]
            self.graph.binding = self.graph.node_names.binding(place(op.location).strip("'"))
            found = converter(self, op)
            results = [found] if isinstance(found, Tensor | ConcatenatedTensors) else list(found)
            computed = [(result.shape, result.dtype) for result in results]
            if computed != wanted:
                raise UnsupportedOperator(f"it was imported as {computed} instead of {wanted}")
        self._values.update(zip(op.results, results, strict=True))


def _raised(tensor: Tensor, rank: int) -> Value:
    """Return the value of an operand. A scalar gets the rank of the other operands."""
    value = tensor.value
    if value.rank == rank or value.constant is None:
        return value
    return Value(constant=value.constant.reshape((1,) * rank))


def _operand(value: Value) -> relax.Expr:
    """Return an expression. One number is a scalar: it is written into the code."""
    constant = value.constant
    if constant is None or constant.size != 1:
        return value.expr
    return relax.const(constant.reshape(()), value.dtype)


@contextmanager
def _naming(op: Any) -> Iterator[None]:
    """Name the operation that can't be imported."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"operation {op.name} at {place(op.location)} can't be imported: {plain_reason(error)}"
        ) from error


def place(location: Any) -> str:
    """Return where an operation comes from, in a few words."""
    ir = mlir("ir")
    while isinstance(location, ir.CallSiteLoc | ir.FusedLoc):
        location = location.callee if isinstance(location, ir.CallSiteLoc) else location.locations[0]
    if isinstance(location, ir.NameLoc):
        return repr(str(location.name_str)[:MAX_PLACE_CHARS])
    if isinstance(location, ir.FileLineColLoc):
        file = "" if location.filename == "-" else f" of {str(location.filename)[-MAX_PLACE_CHARS:]!r}"
        return f"line {location.start_line}{file}"
    return "an unknown place"

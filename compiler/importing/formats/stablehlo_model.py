"""StableHLO programs: MLIR's text or bytecode, portable artifacts, and what jax.export serializes around one.

jaxlib parses them, and compiles them with XLA to say what they compute. Nothing runs that the program doesn't
define itself: whatever else it calls is refused before.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray

from compiler.importing.formats.model_file import Content, check_shapes
from compiler.importing.graph import Refused, identifiers
from compiler.importing.model import RelaxModel, checked_model
from compiler.importing.spec import ModelError, NoReference, Shape, TensorSpec, first_line
from compiler.importing.stablehlo import CONVERTERS
from compiler.importing.stablehlo.attributes import mlir, tensor_type
from compiler.importing.stablehlo.graph import Importer
from core.model_format import MLIR_BYTECODE, exported_artifact

Array = NDArray[Any]
_PORTABLE = MLIR_BYTECODE + b"\rStableHLO_v"
# Makes the types of all values follow from those of the inputs.
_REFINE = "inline,stablehlo-refine-shapes,func.func(stablehlo-canonicalize-dynamism)"


@dataclass(frozen=True)
class StablehloModel:
    """A program that was parsed. `main` is its function of this name."""

    module: Any
    main: Any
    inputs: tuple[TensorSpec, ...]
    output_names: tuple[str, ...]

    def to_relax(self) -> RelaxModel:
        names = identifiers([spec.name for spec in self.inputs])
        module = Importer(self.module, CONVERTERS).module(self.inputs, names)
        return checked_model(module, self.inputs, self.output_names)

    def compute(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the outputs as XLA computes them. Raises NoReference."""
        jax = importlib.import_module("jaxlib._jax")
        try:
            executable = self._executable
            (device,) = executable.local_devices()
            buffers = [
                jax.dlpack_managed_tensor_to_buffer(
                    tvm.runtime.tensor(np.asarray(inputs[spec.name], order="C")).__dlpack__(), device, None
                )
                for spec in self.inputs
            ]
            return [np.asarray(result) for result in executable.execute(buffers)]
        except Exception as error:  # XLA raises whatever it meets
            raise NoReference(f"XLA can't run it ({first_line(error)})") from error

    @cached_property
    def _executable(self) -> Any:
        jax, client = (importlib.import_module(f"jaxlib.{name}") for name in ("_jax", "xla_client"))
        code = io.BytesIO()
        self.module.operation.write_bytecode(code)
        cpu = client.make_cpu_client()
        devices = jax.DeviceList(tuple(cpu.local_devices()))
        return cpu.compile_and_load(code.getvalue(), devices, client.CompileOptions())


def read(content: Content, shapes: Mapping[str, Shape]) -> StablehloModel:
    try:
        importlib.import_module("jaxlib.mlir.ir")
    except ImportError as error:
        raise ModelError(
            "StableHLO is read with jaxlib, which the scheduler lacks: install it there "
            "(pip install 'tunefarm[stablehlo]'), or export the model as ONNX"
        ) from error
    module = _parsed(bytes(content))
    main = _main(module)
    arguments = list(main.regions[0].blocks[0].arguments)
    names = _unique([_name(argument, number) for number, argument in enumerate(arguments)])
    if any(_is_dynamic(argument.type) for argument in arguments):
        _refine(module, names, arguments, shapes)
        main = _main(module)
        arguments = list(main.regions[0].blocks[0].arguments)
    inputs = []
    for name, argument in zip(names, arguments, strict=True):
        try:
            inputs.append(TensorSpec(name, *tensor_type(argument.type)))
        except Refused as error:
            raise ModelError(f"input '{name}' can't be read: {error}") from error
    check_shapes(tuple(inputs), shapes)
    return StablehloModel(module, main, tuple(inputs), _output_names(main))


def _parsed(data: bytes) -> Any:
    """Return the module of a file. Raises ModelError."""
    ir, stablehlo = mlir("ir"), mlir("dialects.stablehlo")
    context = ir.Context()
    context.enable_multithreading(False)
    registry = ir.DialectRegistry()
    mlir("_mlir_libs._jax_mlir_ext").register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (stablehlo, mlir("dialects.chlo")):
        dialect.register_dialect(context)
    # They are refused by name.
    context.allow_unregistered_dialects = True
    data = exported_artifact(io.BytesIO(data)) or data
    try:
        if data.startswith(_PORTABLE):
            return stablehlo.deserialize_portable_artifact(context, data)
        return ir.Module.parse(data, context)
    except Exception as error:  # MLIRError, ValueError, UnicodeDecodeError
        raise ModelError(
            f"the StableHLO program can't be parsed ({first_line(error)}): export the model again, with a "
            "version of JAX, PyTorch/XLA or TensorFlow that isn't newer than the scheduler's jaxlib"
        ) from error


def _main(module: Any) -> Any:
    for op in module.body.operations:
        if op.operation.name == "func.func" and op.attributes["sym_name"].value == "main":
            return op
    raise ModelError("the StableHLO program has no function called main, which is the one that is tuned")


def _name(argument: Any, number: int) -> str:
    """Return the name that an argument's location has, as JAX writes it; without one, its position."""
    location = argument.location
    is_named = isinstance(location, mlir("ir").NameLoc)
    return str(location.name_str) if is_named and location.name_str else f"input{number}"


def _output_names(main: Any) -> tuple[str, ...]:
    attributes = main.attributes
    results = len(mlir("ir").FunctionType(attributes["function_type"].value).results)
    described = list(attributes["res_attrs"]) if "res_attrs" in attributes else [{}] * results
    names = [
        str(each["jax.result_info"].value) if "jax.result_info" in each else ""
        for number, each in enumerate(described)
    ]
    return tuple(_unique([name or f"output{number}" for number, name in enumerate(names)]))


def _unique(names: Sequence[str]) -> list[str]:
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names)]


def _is_dynamic(kind: Any) -> bool:
    return isinstance(kind, mlir("ir").RankedTensorType) and not kind.has_static_shape


def _refine(module: Any, names: Sequence[str], arguments: Sequence[Any], shapes: Mapping[str, Shape]) -> None:
    """Give the inputs that leave dimensions open the shapes that the user gave, and all values theirs."""
    types = []
    for name, argument in zip(names, arguments, strict=True):
        kind = argument.type
        if not _is_dynamic(kind):
            types.append(str(kind))
            continue
        declared = [None if kind.is_dynamic_dim(k) else kind.get_dim_size(k) for k in range(kind.rank)]
        example = ",".join(str(extent or 8) for extent in declared)
        if name not in shapes:
            raise ModelError(
                f"input '{name}' has dynamic dimensions: give its shape with --shape {name}={example}"
            )
        shape = shapes[name]
        fits = len(shape) == kind.rank and all(
            fixed in (None, extent) for fixed, extent in zip(declared, shape, strict=True)
        )
        if not fits or min(shape) < 1:
            raise ModelError(
                f"input '{name}' can't have the shape {tuple(shape)}: the file says {kind}, so give one like "
                f"--shape {name}={example}"
            )
        types.append(f"tensor<{'x'.join(map(str, shape))}x{kind.element_type}>")
    mlir("dialects.stablehlo").register_stablehlo_passes()
    manager = mlir("passmanager").PassManager.parse(
        f"builtin.module(stablehlo-refine-arguments{{types={','.join(types)}}},{_REFINE})", module.context
    )
    try:
        manager.run(module.operation)
    except Exception as error:
        raise ModelError(
            f"the program's shapes don't follow from those of its inputs ({first_line(error)}): export the "
            "model with the shapes that it should be tuned for"
        ) from error

"""StableHLO programs: MLIR's text or bytecode, portable artifacts, and files of jax.export.

jaxlib parses them, and XLA computes their reference outputs. Calls of functions that the program doesn't
define are refused before, even in parts that the import doesn't use.
"""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tvm

from compiler.importing.formats.model_file import Content, check_shapes, unique_names
from compiler.importing.model import RelaxModel, checked_model
from compiler.importing.onnx_file import static_shape_of
from compiler.importing.onnx_graph import identifiers
from compiler.importing.spec import ModelError, NoReference, Shape, TensorSpec, first_line
from compiler.importing.stablehlo import CONVERTERS
from compiler.importing.stablehlo.attributes import Array, mlir, tensor_type
from compiler.importing.stablehlo.control import CALL_TARGETS
from compiler.importing.stablehlo.importer import Importer, functions_of
from compiler.importing.values import UnsupportedOperator
from core.model_format import MLIR_BYTECODE, exported_artifact

# Dialects of the operations that XLA may get.
_DIALECTS = frozenset(("builtin", "chlo", "func", "sdy", "stablehlo"))
_PORTABLE = MLIR_BYTECODE + b"\rStableHLO_v"
MAX_CALLS = 1000
# MLIR's position in a text without a file's name.
_POSITION = re.compile(r'^"-":(\d+):(\d+): ')


@dataclass(frozen=True)
class StablehloModel:
    """A parsed program whose function `main` has these inputs and outputs."""

    module: Any
    inputs: tuple[TensorSpec, ...]
    output_names: tuple[str, ...]

    def to_relax(self) -> RelaxModel:
        names = identifiers([spec.name for spec in self.inputs])
        try:
            importer = Importer(self.module, CONVERTERS)
            module = importer.module(self.inputs, names)
        except UnsupportedOperator as error:
            raise ModelError(f"the StableHLO program can't be imported: {error}") from error
        node_names = importer.graph.node_names.names
        model = checked_model(module, self.inputs, self.output_names, node_names=node_names)
        for spec in model.outputs:
            if 0 in spec.shape:
                raise ModelError(f"output '{spec.name}' is empty, of shape {spec.shape}: leave it out")
        return model

    def describe_node(self, name: str) -> str:
        """Describe the node of the file that the imported model's `node_names` name so."""
        return f"the operation at '{name}'"

    def operations(self) -> list[str]:
        """Return the name of every operation; for a custom call, its target."""
        found: list[str] = []

        def visit(op: Any) -> Any:
            target = op.attributes["call_target_name"].value if op.name == "stablehlo.custom_call" else ""
            found.append(target or op.name)
            return mlir("ir").WalkResult.ADVANCE

        self.module.operation.walk(visit)
        return found

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
        except Exception as error:  # XLA's exceptions have no common class
            raise NoReference(f"XLA can't run it ({first_line(error)})") from error

    @cached_property
    def _executable(self) -> Any:
        _check_calls(self.module)
        jax, client = (importlib.import_module(f"jaxlib.{name}") for name in ("_jax", "xla_client"))
        cpu = client.make_cpu_client()
        devices = jax.DeviceList(tuple(cpu.local_devices()))
        return cpu.compile_and_load(bytecode(self.module), devices, client.CompileOptions())


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
    functions = functions_of(module)
    names = unique_names([_name(functions, argument) or f"input{n}" for n, argument in enumerate(arguments)])
    if any(_is_dynamic(argument.type) for argument in arguments):
        module = _refined(module, names, arguments, shapes)
        main = _main(module)
        arguments = list(main.regions[0].blocks[0].arguments)
    inputs = []
    for name, argument in zip(names, arguments, strict=True):
        try:
            inputs.append(TensorSpec(name, *tensor_type(argument.type)))
        except UnsupportedOperator as error:
            raise ModelError(f"input '{name}' can't be read: {error}") from error
    check_shapes(tuple(inputs), shapes)
    return StablehloModel(module, tuple(inputs), _output_names(main))


def _parsed(data: bytes) -> Any:
    """Return the module of a file. Raises ModelError."""
    ir = mlir("ir")
    context = ir.Context()
    context.enable_multithreading(False)
    registry = ir.DialectRegistry()
    mlir("_mlir_libs._jax_mlir_ext").register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in ("stablehlo", "chlo", "sdy"):
        mlir(f"dialects.{dialect}").register_dialect(context)
    # Unknown dialects are refused by name later.
    context.allow_unregistered_dialects = True
    data = data[exported_artifact(io.BytesIO(data)) or slice(None)]
    try:
        if data.startswith(_PORTABLE):
            return mlir("dialects.stablehlo").deserialize_portable_artifact(context, data)
        return ir.Module.parse(data, context)
    except Exception as error:  # MLIRError, ValueError, UnicodeDecodeError
        version = importlib.import_module("jaxlib.version").__version__
        raise ModelError(
            f"the StableHLO program can't be parsed ({_diagnosis(error)}): it is damaged, or newer than the "
            f"scheduler's jaxlib {version}; export the model again, with a JAX that isn't newer"
        ) from error


def _check_calls(module: Any) -> None:
    """Raise ValueError if any operation, even one that the import leaves out, calls a function of the
    process. XLA finds these by name, and some take addresses."""

    found: list[str] = []

    def check(op: Any) -> Any:
        if op.name.partition(".")[0] not in _DIALECTS:
            found.append(f"it has an operation {op.name}")
        target = op.attributes["call_target_name"].value if op.name == "stablehlo.custom_call" else ""
        if target and target not in CALL_TARGETS:
            found.append(f"it calls '{target}', which the program doesn't define")
        return mlir("ir").WalkResult.ADVANCE

    module.operation.walk(check)
    if found:
        raise ValueError(found[0])


def _diagnosis(error: Exception) -> str:
    """Return the first line that names the problem. MLIR's first lines describe its current task."""
    lines = [line for line in str(error).splitlines() if "error:" in line]
    text = first_line(ValueError(lines[0].partition("error:")[2]) if lines else error)
    return _POSITION.sub(r"line \1, column \2: ", text)


def _main(module: Any) -> Any:
    main = functions_of(module).get("main")
    if main is None or not main.attributes["function_type"].value.results:
        raise ModelError(
            "the StableHLO program has no function called main with a body and results: that is the one "
            "that is tuned"
        )
    return main


def _name(functions: Mapping[str, Any], argument: Any) -> str:
    """Return the name in an argument's location, as JAX writes it, or in the location of the function that
    the argument is passed to."""
    places = [argument.location]
    for use in argument.uses:
        callee = (
            functions.get(use.owner.attributes["callee"].value) if use.owner.name == "func.call" else None
        )
        if callee is not None:
            places.append(callee.regions[0].blocks[0].arguments[use.operand_number].location)
    named = [str(place.name_str) for place in places if isinstance(place, mlir("ir").NameLoc)]
    return named[0] if named else ""


def _output_names(main: Any) -> tuple[str, ...]:
    results = main.attributes["function_type"].value.results
    described = list(main.attributes["res_attrs"]) if "res_attrs" in main.attributes else [{}] * len(results)
    names = [
        (str(each["jax.result_info"].value) if "jax.result_info" in each else "") or f"output{number}"
        for number, each in enumerate(described)
    ]
    return unique_names(names)


def _is_dynamic(kind: Any) -> bool:
    return isinstance(kind, mlir("ir").RankedTensorType) and not kind.has_static_shape


def _refined(module: Any, names: Sequence[str], arguments: Sequence[Any], shapes: Mapping[str, Shape]) -> Any:
    """Return the program with static shapes. Inputs with open dimensions get the user's shapes, and the other
    shapes are inferred."""
    types = []
    for name, argument in zip(names, arguments, strict=True):
        kind = argument.type
        if _is_dynamic(kind):
            declared = [None if kind.is_dynamic_dim(k) else kind.get_dim_size(k) for k in range(kind.rank)]
            shape = static_shape_of(name, declared, shapes.get(name))
            types.append(f"tensor<{'x'.join(map(str, (*shape, kind.element_type)))}>")
        else:
            types.append(str(kind))
    _separate(module)
    mlir("dialects.stablehlo").register_stablehlo_passes()
    passes = f"builtin.module(stablehlo-refine-arguments{{types={','.join(types)}}})"
    try:
        mlir("passmanager").PassManager.parse(passes, module.context).run(module.operation)
        refine = importlib.import_module("jaxlib._jax").mlir.refine_polymorphic_shapes
        return _parsed(refine(bytecode(module)))
    except Exception as error:
        raise ModelError(
            "the shapes of the StableHLO program don't follow from those that its inputs are given "
            f"({_diagnosis(error)}): export the model with the shapes that it should be tuned for"
        ) from error


def bytecode(module: Any) -> bytes:
    """Return a program as MLIR's bytecode."""
    code = io.BytesIO()
    module.operation.write_bytecode(code)
    return code.getvalue()


def _separate(module: Any) -> None:
    """Copy the function of every call, because MLIR's pass can't infer different shapes for calls of one
    function."""
    ir = mlir("ir")
    functions = functions_of(module)
    del functions["main"]
    waiting, count = [_main(module).operation], 0
    while waiting:
        calls: list[Any] = []

        def collect(op: Any, calls: list[Any] = calls) -> Any:
            if op.name == "func.call":
                calls.append(op)
            return ir.WalkResult.ADVANCE

        waiting.pop().walk(collect)
        for call in calls:
            count += 1
            if count > MAX_CALLS:
                raise ModelError(
                    f"the functions of the StableHLO program stand for more than {MAX_CALLS} calls"
                )
            name = call.attributes["callee"].value
            if name not in functions:
                raise ModelError(
                    f"the StableHLO program calls the function '{name}', which is main, or which it doesn't "
                    "define"
                )
            with module.context, ir.InsertionPoint(module.body):
                own = functions[name].operation.clone()
            own.attributes["sym_name"] = ir.StringAttr.get(f"{name}.{count}", module.context)
            call.attributes["callee"] = ir.FlatSymbolRefAttr.get(f"{name}.{count}", module.context)
            waiting.append(own)

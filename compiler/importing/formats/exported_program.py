"""PyTorch's exported programs, the .pt2 files of torch.export.save.

Such a file is a zip of JSON, of weights as plain bytes and of pickled example inputs. PyTorch looks up a
node's target by name, and runs it to compute shapes. It evaluates the text of symbolic extents, runs Python
code with names from the file, and imports modules that containers name. So the file's parts and texts are
checked against allow-lists before PyTorch reads the file. PyTorch unpickles only tensors and containers of
tensors.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from compiler.constants.fold import static_shape
from compiler.importing.formats import exported_operators, exported_reductions
from compiler.importing.formats.exported_decoder_cache import CacheNotInPlace, KeptCache, find_cache
from compiler.importing.formats.exported_operators import cast, is_float, write_in_place
from compiler.importing.formats.exported_shapes import (
    dimensions_of,
    example_shapes,
    is_extent,
    is_guard,
    with_sizes,
)
from compiler.importing.formats.model_file import Content, check_shapes, unique_names
from compiler.importing.model import RelaxModel, checked_model
from compiler.importing.node_names import NodeNames
from compiler.importing.reasons import describe_inputs, plain_reason
from compiler.importing.spec import ModelError, NoReference, Shape, TensorSpec, first_line
from compiler.importing.values import UnsupportedOperator, numpy_dtype
from sandbox import python_packages

Array = NDArray[Any]
REPLACE = "Replace it by other operators, or export the model as ONNX"
EXPORT_AGAIN = "export the model again with PyTorch 2.8 or newer"
MAX_JSON_BYTES = 64 << 20
# The allowed files of an archive, below its own folder.
_FILES = re.compile(
    r"models/model\.json|data/weights/(model_weights_config\.json|weight_\d+)"
    r"|data/constants/(model_constants_config\.json|tensor_\d+)|data/sample_inputs/model\.pt"
    r"|archive_format|archive_version|byteorder|\.data/(version|serialization_id)|\.format_version"
)
# The allowed targets of nodes.
_TARGETS = re.compile(
    r"torch\.ops\.(aten|prims|torchvision)\.(?!from_file)\w+\.\w+"
    r"|_operator\.(getitem|add|sub|mul|neg|floordiv|truediv|mod|eq|ne|lt|le|gt|ge|and_|or_)"
)
# Patterns of names, such as weights' paths; of names of values and arguments, which PyTorch writes into
# Python code; and of formulas that have a range, such as 2*s58, which PyTorch only compares.
_PATH = re.compile(r"[\w.+:/ -]*")
_PATTERNS = {"name": re.compile(r"\w*"), "range": re.compile(r"[\w+*/(), -]{0,1000}")}
# Keys of texts that PyTorch only stores: operators' text arguments, and a node's origin.
_KEPT_TEXTS = ("as_string", "as_strings", "metadata")
# The allowed containers of inputs and outputs. The context of other containers names modules that PyTorch
# imports.
_CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict")

_MISSING_PART = re.compile(r"failed locating file (\S+): file not found")
_BROKEN_NODE = re.compile(r"Failed deserializing node Node\(target='([\w.]*)'")
# Messages of Python and of PyTorch's own checks that aren't for users.
_OF_PYTHON = re.compile(r"INTERNAL ASSERT|list index out of range|__\w+__|immutable_list|^\W*$")

_RANDOM = frozenset(
    {
        *(
            "bernoulli",
            "cauchy",
            "exponential",
            "geometric",
            "log_normal",
            "multinomial",
            "normal",
            "poisson",
        ),
        *("rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random", "randperm"),
        *("rrelu_with_noise", "rrelu_with_noise_functional", "uniform", "normal_functional", "binomial"),
    }
)
NARROW = frozenset({"float16", "bfloat16"})
CONVERTERS = {**exported_operators.CONVERTERS, **exported_reductions.CONVERTERS}
# The arguments that TVM's front end needs in float32, by operator. It sums products in float32 and then can't
# add a narrow bias, and it normalizes only with weights of the data's type.
_WIDENED: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("addmm.default", "baddbmm.default"), (0,)),
    **dict.fromkeys(("linear.default", "conv1d.default", "conv2d.default", "conv3d.default"), (2,)),
    "convolution.default": (2,),
    **dict.fromkeys(("layer_norm.default", "native_layer_norm.default", "group_norm.default"), (0, 2, 3)),
    "native_group_norm.default": (0, 1, 2),
    **dict.fromkeys(
        ("batch_norm.default", "_native_batch_norm_legit_no_training.default", "instance_norm.default"),
        (0, 1, 2, 3, 4),
    ),
}
# Operators whose operands are cast to the result's type, as in PyTorch.
_JOINS = frozenset({"cat.default", "stack.default", "where.self"})
# Operators that compute in the result's type, and compare with a float in float. TVM's front end turns 2.5
# beside integers into an integer.
_ARITHMETIC = frozenset(
    {"add", "atan2", "clamp", "clamp_max", "clamp_min", "div", "mul", "pow", "remainder", "rsub", "sub"}
)
_COMPARISONS = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})
# Functions of floats that PyTorch also applies to integers and booleans.
_FLOAT_FUNCTIONS = frozenset(
    f"{name}.default"
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "expm1", "log"),
        *("log10", "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
    )
)


@dataclass(frozen=True)
class ExportedProgram:
    """A loaded exported program, and the same program in PyTorch's core operators without in-place writes.

    `buffers` maps outputs that are new contents of buffers to the inputs that are the buffers. A decoder that
    keeps its cache has a `cache`, and the `function` that takes and returns it; `no_cache` says why another
    one doesn't.
    """

    program: Any
    decomposed: Any
    inputs: tuple[TensorSpec, ...]
    buffers: Mapping[str, str] = field(default_factory=dict)
    cache: KeptCache | None = None
    function: ExportedProgram | None = None
    no_cache: str = ""

    def as_function(self) -> ExportedProgram:
        """Return the program as a function that takes and returns a decoder's cache."""
        return self.function or self

    def keep_cache(self) -> ExportedProgram:
        """If the program is a decoder that writes its cache, return it as a decoder that keeps its cache."""
        if not self.buffers:
            return self
        try:
            cache = find_cache(self.decomposed, self.inputs, dict(self.buffers))
        except CacheNotInPlace as error:
            return replace(self, no_cache=str(error))
        return ExportedProgram(cache.program, cache.program, cache.inputs, cache=cache, function=self)

    @property
    def output_names(self) -> tuple[str, ...]:
        return unique_names([str(name) for name in self.decomposed.graph_signature.user_outputs])

    def to_relax(self) -> RelaxModel:
        # Imported here, because it loads PyTorch.
        from tvm.relax.frontend.torch import from_exported_program

        known = known_operators()
        node_names = NodeNames()
        writes = self.cache.writes if self.cache else {}
        _refuse_random_numbers(self.decomposed.graph)
        _refuse_unknown(self.decomposed.graph, known)
        try:
            with _quietly():
                module = from_exported_program(
                    self.decomposed,
                    unwrap_unit_return_tuple=True,
                    run_ep_decomposition=False,
                    custom_convert_map=dict.fromkeys(known, partial(_convert_at, node_names, writes)),
                )
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"the exported program can't be imported: {plain_reason(error)}. Export it as ONNX"
            ) from error
        names = [str(name) for name in self.decomposed.graph_signature.user_inputs]
        main = _in_order(module["main"], names, self.inputs)
        module.update_func(module.get_global_var("main"), main.with_attr("num_input", len(self.inputs)))
        model = checked_model(module, self.inputs, self.output_names, node_names=node_names.names)
        cache = self.cache.spec if self.cache else None
        return replace(model, cache=cache, no_cache=self.no_cache)

    def describe_node(self, name: str) -> str:
        """Describe the node of the file that the imported model's `node_names` name so."""
        for node in self.decomposed.graph.nodes:
            if node.name == name:
                return f"node '{name}' ({getattr(node.target, '__name__', node.target)})"
        return f"module '{name}'"

    def compute(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the outputs as PyTorch computes them, operator by operator. Raises NoReference."""
        torch = importlib.import_module("torch")
        program, signature = self.program, self.program.graph_signature
        held = {**program.state_dict, **program.constants}
        arguments = [
            held[spec.target] if spec.target is not None else _tensor(torch, inputs[spec.arg.name])
            for spec in signature.input_specs
        ]
        try:
            with torch.no_grad(), _quietly():
                results = torch.fx.Interpreter(program.graph_module).run(*arguments)
        except Exception as error:  # PyTorch's exceptions have no common class
            raise NoReference(f"PyTorch can't run it ({first_line(error)})") from error
        wanted = {str(name) for name in signature.user_outputs}
        return [
            _array(torch, result.detach())
            for spec, result in zip(signature.output_specs, results, strict=True)
            if spec.arg.name in wanted and spec.kind.name == "USER_OUTPUT"
        ]


def _in_order(main: relax.Function, names: Sequence[str], inputs: Sequence[TensorSpec]) -> relax.Function:
    """Return a function whose parameters, in the order of `names`, are in the order of the inputs."""
    params = dict(zip(names, main.params, strict=True))
    ordered = [params[spec.name] for spec in inputs]
    return relax.Function(ordered, main.body, main.ret_ty, main.is_pure, main.attrs)


def _tensor(torch: Any, array: Array) -> Any:
    """Return an array as PyTorch's tensor; bfloat16, which NumPy lacks, by its bits."""
    data = np.ascontiguousarray(array).reshape(array.shape)
    if str(data.dtype) == "bfloat16":
        return torch.from_numpy(data.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(data)


def _array(torch: Any, tensor: Any) -> Array:
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.contiguous().view(torch.int16).numpy()
        return bits.view(numpy_dtype("bfloat16"))
    array: Array = tensor.numpy()
    return array


def known_operators() -> set[str]:
    """Return the names of the operators that are imported."""
    # Imported here, because it loads PyTorch.
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    return {*ExportedProgramImporter().convert_map, *CONVERTERS}


class _NamingBuilder:
    """A block builder of TVM that names the bindings that it creates."""

    def __init__(self, builder: relax.BlockBuilder, binding: str) -> None:
        self._builder = builder
        self._binding = binding

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        return self._builder.emit(expr, name_hint or self._binding)


def _convert_at(node_names: NodeNames, writes: Mapping[str, int], node: Any, importer: Any) -> Any:
    """Convert a node, and name its bindings after the module that it comes from. `writes` maps the nodes that
    write into a cache to the axis of their rows.
    """
    builder = importer.block_builder
    modules = [str(path) for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    name = next(reversed(modules), "") or node.name
    importer.block_builder = _NamingBuilder(builder, node_names.binding(name))
    try:
        if node.name in writes:
            return write_in_place(node, importer, writes[node.name])
        return _convert(node, importer)
    finally:
        importer.block_builder = builder


def _convert(node: Any, importer: Any) -> Any:
    """Convert a node with TVM's front end, which computes much in float32 for any operands. Cast the result
    to the type that PyTorch recorded."""
    name, builder = node.target.__name__, importer.block_builder
    value = node.meta.get("val")
    wanted = str(getattr(value[0] if isinstance(value, tuple | list) else value, "dtype", ""))
    wanted = wanted.removeprefix("torch.")
    operands: Sequence[Any] = ()
    if name in _JOINS:
        operands = node.args[1:3] if name == "where.self" else node.args[0]
    elif name in _FLOAT_FUNCTIONS or ("float" in wanted and name.partition(".")[0] in _ARITHMETIC):
        operands = [one for one in node.args[:2] if one in importer.env and not is_float(importer.env[one])]
    elif name.partition(".")[0] in _COMPARISONS and isinstance(node.args[1], float):
        operands, wanted = node.args[:1], "float32"
    elif wanted in NARROW:
        operands = [node.args[place] for place in _WIDENED.get(name, ()) if place < len(node.args)]
    before = {one: importer.env[one] for one in operands if one in importer.env}
    wide = "float32" if name in _WIDENED and wanted in NARROW else wanted
    for one, tensor in before.items():
        importer.env[one] = cast(builder, tensor, wide)
    try:
        own = CONVERTERS.get(name)
        result = importer.create_convert_map()[name](node) if own is None else own(node, importer)
        return _as_recorded(builder, result, value)
    except Exception as error:
        given = [one.meta["val"] for one in node.all_input_nodes if hasattr(one.meta.get("val"), "dtype")]
        told = describe_inputs([(str(one.dtype).removeprefix("torch."), [*one.shape]) for one in given])
        raise ModelError(
            f"operator {name} of node '{node.name}' can't be imported: {plain_reason(error)}{told}. {REPLACE}"
        ) from error
    finally:
        importer.env.update(before)


def _as_recorded(builder: relax.BlockBuilder, result: Any, value: Any) -> Any:
    """Cast a result to the type that PyTorch recorded. Raises UnsupportedOperator if that's impossible."""
    if not isinstance(getattr(result, "ty", None), relax.TensorType) or not hasattr(value, "dtype"):
        return result
    wanted, dtype = str(value.dtype).removeprefix("torch."), str(result.ty.dtype)
    shape, found = [int(extent) for extent in value.shape], static_shape(result)
    if found is not None and [*found] != shape:
        raise UnsupportedOperator(f"it would compute the shape {tuple(found)} instead of {tuple(shape)}")
    if dtype != wanted and "float" in wanted and "float" not in dtype:
        raise UnsupportedOperator(f"it would compute {dtype} instead of {wanted}")
    return cast(builder, result, wanted)


def _refuse_unknown(graph: Any, known: set[str]) -> None:
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        if name and name not in known:
            raise ModelError(
                f"operator {name} of node '{node.name}' can't be imported: it isn't supported. {REPLACE}"
            )


def _refuse_random_numbers(graph: Any) -> None:
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        # PyTorch omits dropout from models in evaluation mode.
        drops = name in ("dropout.default", "native_dropout.default") and node.args[2:3] == (True,)
        if drops or name.partition(".")[0] in _RANDOM:
            raise ModelError(
                f"operator {name} of node '{node.name}' draws random numbers, which a library doesn't: call "
                "eval() before the export, or make the numbers an input"
            )


def read(content: Content, shapes: Mapping[str, Shape]) -> ExportedProgram:
    torch, program = _load(content)
    failures: list[BaseException] = []
    try:
        with _quietly(), _collecting(failures):
            exported = of_program(with_sizes(program, shapes))
        for one in (exported.program, exported.decomposed):
            _leave_out_nones(one)
    except ModelError:
        raise
    except Exception as error:
        raise _unreadable(torch, failures[0] if failures else error) from error
    check_shapes(exported.inputs, shapes)
    return exported.keep_cache()


def read_open(content: Content) -> tuple[ExportedProgram, dict[str, tuple[int | str, ...]]]:
    """Return a program for the shapes of its example inputs, and the dimensions of its inputs. Raises
    ModelError."""
    _, program = _load(content)
    return read(content, example_shapes(program)), dimensions_of(program)


def _load(content: Content) -> tuple[Any, Any]:
    """Return PyTorch, and the program of a file as PyTorch loads it. Raises ModelError."""
    file = io.BytesIO(content)
    operators = _check(file)
    # PyTorch's own setting: only tensors and containers of tensors are unpickled, even if a caller requests
    # more.
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    python_packages.let_in(python_packages.TORCH)
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise ModelError(
            "exported programs are read with PyTorch, which the scheduler lacks: install it there "
            "(pip install 'tunefarm[torch]'), or export the model as ONNX"
        ) from error
    torch.set_num_threads(1)
    _check_operators(torch, operators)
    failures: list[BaseException] = []
    try:
        file.seek(0)
        with _quietly(), _collecting(failures):
            program = torch.export.load(file)
            _keep_written_constants(torch, program)
            return torch, program
    except Exception as error:
        raise _unreadable(torch, failures[0] if failures else error) from error


def _unreadable(torch: Any, cause: BaseException) -> ModelError:
    return ModelError(
        f"PyTorch {torch.__version__} can't load the exported program ({_reason(cause)}): "
        "export it with this version, or as ONNX"
    )


def of_program(program: Any) -> ExportedProgram:
    """Return the model of a torch.export program in this process. Raises ModelError, and PyTorch's
    exceptions."""
    torch = importlib.import_module("torch")
    with _quietly():
        decomposed = program.run_decompositions()
    _replace_copies(torch, decomposed)
    _drop_unread_buffers(decomposed)
    signature = decomposed.graph_signature
    names = {spec.target: spec.arg.name for spec in signature.input_specs if spec.kind.name == "BUFFER"}
    buffers = {output: names[buffer] for output, buffer in signature.buffers_to_mutate.items()}
    if _pass_states(torch, decomposed):
        program = decomposed
    return ExportedProgram(program, decomposed, _inputs(decomposed), buffers)


def _keep_written_constants(torch: Any, program: Any) -> None:
    """Make constants that a program writes in place buffers: PyTorch can't decompose a program that writes
    constants. transformers' static caches are such constants, and also buffers that nothing reads.
    """
    specs = program.graph_signature.input_specs
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    buffers = {
        _place(program.state_dict.get(spec.target, program.constants.get(spec.target))): nodes[spec.arg.name]
        for spec in specs
        if spec.kind.name == "BUFFER"
    }
    written = {
        node.args[0].name
        for node in program.graph.nodes
        if node.op == "call_function" and node.args and _writes(node.target)
    }
    for spec in [one for one in specs if one.kind.name == "CONSTANT_TENSOR" and one.arg.name in written]:
        constant = program.constants[spec.target]
        if (buffer := buffers.get(_place(constant))) is not None:
            # No two inputs of a program that is decomposed may share memory.
            nodes[spec.arg.name].replace_all_uses_with(buffer)
            program.graph.erase_node(nodes[spec.arg.name])
            specs.remove(spec)
            del program.constants[spec.target]
        else:
            program.state_dict[spec.target] = program.constants.pop(spec.target)
            spec.kind, spec.persistent = torch.export.graph_signature.InputKind.BUFFER, True
    program.graph_module.recompile()


def _place(tensor: Any) -> object:
    """Return what is equal for tensors that are views of the same elements."""
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride()


def _writes(target: Any) -> bool:
    """Return whether an operator writes its first argument."""
    arguments = getattr(getattr(target, "_schema", None), "arguments", ())
    return bool(arguments and arguments[0].alias_info is not None and arguments[0].alias_info.is_write)


def _replace_copies(torch: Any, program: Any) -> None:
    """Use a value itself where it was copied into a tensor of the same shape and type."""
    for node in [one for one in program.graph.nodes if one.target is torch.ops.aten.copy.default]:
        into, value = (one.meta["val"] for one in node.args[:2])
        if (into.shape, into.dtype) == (value.shape, value.dtype):
            node.replace_all_uses_with(node.args[1])
            for spec in program.graph_signature.output_specs:
                if spec.arg.name == node.name:
                    spec.arg = torch.export.graph_signature.TensorArgument(node.args[1].name)
            program.graph.erase_node(node)
    program.graph_module.recompile()


def _drop_unread_buffers(program: Any) -> None:
    """Don't return new contents of buffers that nothing reads, such as the length of a cache that each call
    sets first.
    """
    signature = program.graph_signature
    unread = {
        spec.target
        for spec, node in zip(signature.input_specs, program.graph.nodes, strict=False)
        if spec.kind.name == "BUFFER" and not node.users
    }
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    kept = [
        place
        for place, spec in enumerate(signature.output_specs)
        if spec.kind.name != "BUFFER_MUTATION" or spec.target not in unread
    ]
    if len(kept) < len(signature.output_specs):
        output.args = (tuple(output.args[0][place] for place in kept),)
        signature.output_specs[:] = [signature.output_specs[place] for place in kept]
        program.graph.eliminate_dead_code()
        program.graph_module.recompile()


def _leave_out_nones(program: Any) -> None:
    """Remove outputs that are None, which a model returns in place of optional results."""
    specs = program.graph_signature.output_specs
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    values = output.args[0]
    kept = [place for place, value in enumerate(values) if value is not None]
    if len(kept) < len(specs):
        output.args = (tuple(values[place] for place in kept),)
        specs[:] = [specs[place] for place in kept]
        program.graph_module.recompile()


def _pass_states(torch: Any, program: Any) -> bool:
    """Make the buffers that a program writes, such as caches, inputs and outputs, because a library keeps
    nothing between calls.

    Inputs that it writes become outputs as well. Return whether there are any.
    """
    kinds, signature = torch.export.graph_signature, program.graph_signature
    written = {*signature.buffers_to_mutate.values()}
    for spec in signature.input_specs:
        if spec.kind.name == "BUFFER" and spec.target in written:
            # TVM's front end would bind a value that isn't in the signature to another input.
            program.constants.pop(spec.target, None)
            spec.kind, spec.target = kinds.InputKind.USER_INPUT, None
    states = [
        spec
        for spec in signature.output_specs
        if spec.kind.name in ("BUFFER_MUTATION", "USER_INPUT_MUTATION")
    ]
    for spec in states:
        spec.kind, spec.target = kinds.OutputKind.USER_OUTPUT, None
    return bool(states)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress PyTorch's warnings, which are for its own developers."""
    log = logging.getLogger("torch")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


class _FailureHandler(logging.Handler):
    """Collects the exceptions of log records."""

    def __init__(self, failures: list[BaseException]) -> None:
        super().__init__()
        self._failures = failures

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._failures.append(record.exc_info[1])


@contextlib.contextmanager
def _collecting(failures: list[BaseException]) -> Iterator[None]:
    """Collect the exceptions that torch.export only logs."""
    log, handler = logging.getLogger("torch.export"), _FailureHandler(failures)
    level, propagates = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.WARNING)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagates


def _reason(error: BaseException) -> str:
    """Return why PyTorch can't load a program. Python's own errors only say which code failed."""
    text = first_line(error)
    if found := _MISSING_PART.search(text):
        return f"its part {found[1]} is missing"
    if found := _BROKEN_NODE.search(text):
        return f"its node that calls '{found[1]}' has missing or wrong inputs or outputs"
    is_python = isinstance(error, TypeError | AttributeError | KeyError | UnicodeError | AssertionError)
    if is_python or _OF_PYTHON.search(text):
        return "a part of its description is missing or of a wrong kind"
    return text


def _check(file: io.BytesIO) -> set[str]:
    """Return the names of the operators in a file. Raise ModelError for parts that PyTorch would run,
    unpickle or evaluate."""
    operators: set[str] = set()
    try:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                name = info.filename.partition("/")[2]
                if not _FILES.fullmatch(name) or info.filename != info.orig_filename:
                    raise ModelError(
                        f"the exported program has a part '{name}', which may hold any program and isn't "
                        f"read: {EXPORT_AGAIN}, without custom objects and compiled code"
                    )
                if name.endswith(".json"):
                    if info.file_size > MAX_JSON_BYTES:
                        raise ModelError(
                            f"the exported program's {name} is larger than {MAX_JSON_BYTES} bytes"
                        )
                    try:
                        described = json.loads(archive.read(info))
                    except ValueError as error:
                        raise ModelError(
                            f"the exported program is damaged ({name} isn't JSON): {EXPORT_AGAIN}"
                        ) from error
                    _check_json(described, "", operators)
    except RecursionError as error:
        raise ModelError(
            f"the exported program's JSON is nested too deeply to be read: {EXPORT_AGAIN}"
        ) from error
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"the exported program is damaged ({first_line(error)}): {EXPORT_AGAIN}") from error
    return operators


def _check_json(part: Any, key: str, operators: set[str]) -> None:
    """Check the value of a key and everything in it; add the operators that it names."""
    if isinstance(part, str):
        _check_text(part, key, operators)
    elif isinstance(part, list):
        for item in part:
            _check_json(item, key, operators)
    elif isinstance(part, dict):
        if "expr_str" in part and not is_extent(part["expr_str"]):
            raise ModelError(
                f"the exported program has a dynamic dimension {ascii(part['expr_str'])[:80]}, which isn't "
                "computed by sums and products: export it without dynamic_shapes"
            )
        if part.get("use_pickle"):
            raise ModelError(
                "the exported program has weights that are pickled, which aren't read: "
                f"{EXPORT_AGAIN}, with plain tensors as weights"
            )
        for name, item in part.items():
            _check_text(name, "range" if key == "range_constraints" else "", operators)
            if name not in _KEPT_TEXTS:
                _check_json(item, name, operators)


def _check_text(text: str, key: str, operators: set[str]) -> None:
    """Check the text of a key, or a key itself."""
    if key in ("target", "as_operator"):
        if not _TARGETS.fullmatch(text):
            raise ModelError(
                f"the exported program calls '{text}', which isn't among PyTorch's own operators: "
                "write the model in terms of those, or export it as ONNX"
            )
        operators.add(text)
    elif key in ("in_spec", "out_spec"):
        _check_containers(text)
    elif key == "guards_code":
        if not is_guard(text):
            raise ModelError(
                f"the exported program has a condition {ascii(text)[:80]}, which doesn't only compare "
                "dimensions: export it without dynamic_shapes"
            )
    elif key != "expr_str" and not _PATTERNS.get(key, _PATH).fullmatch(text):
        raise ModelError(
            f"the exported program has a name {ascii(text)[:80]}, which no Python program has: {EXPORT_AGAIN}"
        )


def _check_containers(text: str) -> None:
    """Check the description of the nesting of inputs or outputs, which is JSON within JSON."""
    try:
        _, *waiting = json.loads(text) if text else (1,)
        while waiting:
            container = waiting.pop()
            keys = container["context"]
            keys = json.loads(keys) if isinstance(keys, str) else keys
            are_plain = isinstance(keys, list) and all(type(one) in (str, int) for one in keys)
            if container["type"] not in _CONTAINERS or not (keys is None or are_plain):
                raise ModelError(
                    f"the exported program takes or returns a {ascii(container['type'])[:80]} of "
                    f"{ascii(keys)[:80]}: {EXPORT_AGAIN}, with inputs and outputs in tuples, lists and dicts"
                )
            waiting += container["children_spec"]
    except (TypeError, LookupError, AttributeError) as error:
        raise ModelError(f"the exported program is damaged ({first_line(error)}): {EXPORT_AGAIN}") from error


def _check_operators(torch: Any, names: set[str]) -> None:
    """Raise ModelError for a name that isn't a compiled PyTorch operator on tensors. TorchScript has others,
    such as aten::save, and objects have methods."""
    for name in names:
        found = torch
        for part in name.split(".")[1:]:
            found = getattr(found, part, None)
        known = isinstance(found, torch._ops.OpOverload) and torch._C._dispatch_has_kernel(found.name())
        if name.startswith("torch") and not known:
            raise ModelError(
                f"the exported program calls '{name}', which this PyTorch doesn't have for tensors: "
                "export it with this version, or as ONNX"
            )


def _inputs(program: Any) -> tuple[TensorSpec, ...]:
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    return tuple(
        _spec(name, placeholders[name].meta.get("val") if name in placeholders else None)
        for name in program.graph_signature.user_inputs
    )


def _spec(name: object, value: Any) -> TensorSpec:
    shape: Sequence[Any] | None = getattr(value, "shape", None)
    if shape is None:
        raise ModelError(f"input '{name}' of the exported program is no tensor; only tensors are supported")
    return TensorSpec(
        str(name), tuple(int(extent) for extent in shape), str(value.dtype).removeprefix("torch.")
    )

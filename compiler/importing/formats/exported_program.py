"""PyTorch's exported programs, the .pt2 files of torch.export.save.

Such a file is a zip of JSON, of weights as plain bytes and of pickled example inputs. PyTorch looks up by
name what a node calls, runs it to learn shapes, and evaluates the text of symbolic extents. So before PyTorch
sees a file, its parts and the names in it are held against what models need, and PyTorch unpickles nothing
but tensors and containers of them.
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
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from compiler.importing.formats.model_file import Content, check_shapes
from compiler.importing.graph import numpy_dtype
from compiler.importing.model import RelaxModel, checked_model
from compiler.importing.spec import ModelError, Shape, TensorSpec, first_line

Array = NDArray[Any]
EXPORT_AGAIN = "export the model again with PyTorch 2.8 or newer"
MAX_JSON_BYTES = 64 << 20
# The files of an archive, below its own folder.
_FILES = re.compile(
    r"models/model\.json|data/weights/(model_weights_config\.json|weight_\d+)"
    r"|data/constants/(model_constants_config\.json|tensor_\d+)|data/sample_inputs/model\.pt"
    r"|archive_format|archive_version|byteorder|\.data/(version|serialization_id)|\.format_version"
)
# What nodes may call.
_TARGETS = re.compile(
    r"torch\.ops\.(aten|prims|torchvision)\.(?!from_file)\w+\.\w+"
    r"|_operator\.(getitem|add|sub|mul|neg|floordiv|truediv|mod|eq|ne|lt|le|gt|ge|and_|or_)"
)

NARROW = frozenset({"float16", "bfloat16"})
# The arguments that TVM's front end wants in float32, by operator: it adds products up in float32 and then
# fails to add a narrow bias.
_WIDENED: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("addmm.default", "baddbmm.default"), (0,)),
    **dict.fromkeys(("linear.default", "conv1d.default", "conv2d.default", "conv3d.default"), (2,)),
    "convolution.default": (2,),
    **dict.fromkeys(("layer_norm.default", "native_layer_norm.default"), (0, 2, 3)),
}


@dataclass(frozen=True)
class ExportedProgram:
    """An exported program that was loaded."""

    program: Any
    inputs: tuple[TensorSpec, ...]

    def to_relax(self) -> RelaxModel:
        # These load PyTorch.
        from tvm.relax.frontend.torch import from_exported_program
        from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

        try:
            with _quietly():
                module = from_exported_program(
                    self.program,
                    unwrap_unit_return_tuple=True,
                    custom_convert_map=dict.fromkeys(ExportedProgramImporter().convert_map, _convert),
                )
        except Exception as error:
            raise ModelError(f"the exported program can't be imported: {first_line(error)}") from error
        main = module["main"].with_attr("num_input", len(self.inputs))
        module.update_func(module.get_global_var("main"), main)
        names = [str(name) for name in self.program.graph_signature.user_outputs]
        return checked_model(module, self.inputs, names)

    def compute(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the outputs as PyTorch computes them, operator by operator."""
        torch = importlib.import_module("torch")
        program, signature = self.program, self.program.graph_signature
        held = {**program.state_dict, **program.constants}
        arguments = [
            held[spec.target] if spec.target is not None else _tensor(torch, inputs[spec.arg.name])
            for spec in signature.input_specs
        ]
        with torch.no_grad(), _quietly():
            results = torch.fx.Interpreter(program.graph_module).run(*arguments)
        wanted = {str(name) for name in signature.user_outputs}
        return [
            _array(torch, result.detach())
            for spec, result in zip(signature.output_specs, results, strict=True)
            if spec.arg.name in wanted and spec.kind.name == "USER_OUTPUT"
        ]


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


def _convert(node: Any, importer: Any) -> Any:
    """Convert a node as TVM's front end does, which computes much in float32 whatever the operands are: the
    result gets the type that PyTorch says."""
    name, builder = node.target.__name__, importer.block_builder
    value = node.meta.get("val")
    wanted = str(getattr(value[0] if isinstance(value, tuple | list) else value, "dtype", ""))
    wanted = wanted.removeprefix("torch.")
    if wanted not in NARROW:
        return importer.create_convert_map()[name](node)
    widened = [node.args[place] for place in _WIDENED.get(name, ()) if place < len(node.args)]
    narrow = {one: importer.env[one] for one in widened if one in importer.env}
    for one, tensor in narrow.items():
        importer.env[one] = builder.emit(relax.op.astype(tensor, "float32"))
    result = importer.create_convert_map()[name](node)
    importer.env.update(narrow)
    kind = getattr(result, "ty", None)
    if isinstance(kind, relax.TensorType) and str(kind.dtype) != wanted:
        result = builder.emit(relax.op.astype(result, wanted))
    return result


def read(content: Content, shapes: Mapping[str, Shape]) -> ExportedProgram:
    file = io.BytesIO(content)
    _check(file)
    # Of PyTorch itself: nothing but tensors and containers of them is unpickled, whatever the caller asks.
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise ModelError(
            "exported programs are read with PyTorch, which the scheduler lacks: install it there "
            "(pip install 'tunefarm[torch]'), or export the model as ONNX"
        ) from error
    torch.set_num_threads(1)
    try:
        file.seek(0)
        with _quietly():
            program = torch.export.load(file)
        inputs = _inputs(program)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"PyTorch {torch.__version__} can't load the exported program ({first_line(error)}): "
            "export it with this version, or as ONNX"
        ) from error
    check_shapes(inputs, shapes)
    return ExportedProgram(program, inputs)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep PyTorch's advice to its own developers to itself."""
    logging.getLogger("torch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _check(file: io.BytesIO) -> None:
    """Raise ModelError for what PyTorch would run, unpickle or evaluate."""
    try:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                name = info.filename.partition("/")[2]
                if not _FILES.fullmatch(name):
                    raise ModelError(
                        f"the exported program has a part '{name}', which may hold any program and isn't "
                        f"read: {EXPORT_AGAIN}, without custom objects and compiled code"
                    )
                if name.endswith(".json"):
                    if info.file_size > MAX_JSON_BYTES:
                        raise ModelError(
                            f"the exported program's {name} is larger than {MAX_JSON_BYTES} bytes"
                        )
                    _check_json(json.loads(archive.read(info)))
    except (zipfile.BadZipFile, OSError, ValueError, RecursionError, NotImplementedError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"the exported program is damaged ({first_line(error)}): {EXPORT_AGAIN}") from error


def _check_json(part: Any) -> None:
    if isinstance(part, list):
        for item in part:
            _check_json(item)
    elif isinstance(part, dict):
        if "expr_str" in part:
            raise ModelError(
                "the exported program has dynamic dimensions: export it with example inputs of the shape "
                "that it should be tuned for, without dynamic_shapes"
            )
        if part.get("use_pickle"):
            raise ModelError(
                "the exported program has weights that are pickled, which aren't read: "
                f"{EXPORT_AGAIN}, with plain tensors as weights"
            )
        target = part.get("target")
        if isinstance(target, str) and not _TARGETS.fullmatch(target):
            raise ModelError(
                f"the exported program calls '{target}', which isn't among PyTorch's own operators: "
                "write the model in terms of those, or export it as ONNX"
            )
        for item in part.values():
            _check_json(item)


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

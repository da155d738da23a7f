"""The reason in a message why a node can't be imported, in ONNX's words.

Error messages of TVM and Python are written for developers. So a failed node is checked again: for inputs
that ONNX doesn't allow, then for inputs and attributes that no importer supports.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from compiler.importing.spec import first_line
from compiler.importing.values import UnsupportedOperator, Value

_log = logging.getLogger(__name__)
# The most inputs in a message, and the most characters of an attribute.
MAX_INPUTS_SHOWN = 4
MAX_ATTRIBUTE_CHARS = 40
# ONNX's shape inference gets the values of constants up to this size.
_MAX_INFERENCE_ELEMENTS = 1 << 10
# ONNX's names of the types that NumPy names differently.
_ONNX_NAMES = {
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "float8e4m3fn",
    "float8_e5m2": "float8e5m2",
    "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2fnuz": "float8e5m2fnuz",
    "float4_e2m1fn": "float4e2m1",
    "float8_e8m0fnu": "float8e8m0",
}
# The positions of inputs that decide the shape of the result, by operator.
_SHAPE_INPUTS = {
    **dict.fromkeys(("CenterCropPad", "Expand", "OneHot", "Pad", "Reshape", "Split", "Tile", "TopK"), (1,)),
    **dict.fromkeys(("Squeeze", "Unsqueeze", "AffineGrid"), (1,)),
    **dict.fromkeys(("ConstantOfShape", "BlackmanWindow", "HammingWindow", "HannWindow"), (0,)),
    **dict.fromkeys(("Range", "MelWeightMatrix"), (0, 1, 2)),
    **dict.fromkeys(("Slice", "Resize"), (1, 2, 3)),
}
_TEXT = "models of text can't be compiled. Compute numbers from the text before the model"
_SEQUENCES = "sequences aren't supported. Pass the tensors themselves: use Split and Concat"
_OPTIONAL = "optional values aren't supported. Pass the tensor itself"
_RANDOM = "its outputs are random. Draw the numbers outside of the model, and make them an input"
# Why operators of ONNX can't be imported, and what to do.
_NEVER = {
    **dict.fromkeys(("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"), _TEXT),
    **dict.fromkeys(("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase"), _SEQUENCES),
    **dict.fromkeys(("SequenceInsert", "SequenceLength", "SequenceMap", "SplitToSequence"), _SEQUENCES),
    **dict.fromkeys(("ConcatFromSequence",), _SEQUENCES),
    **dict.fromkeys(("Optional", "OptionalGetElement", "OptionalHasElement"), _OPTIONAL),
    **dict.fromkeys(("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"), _RANDOM),
    **dict.fromkeys(("RandomUniform", "RandomUniformLike"), _RANDOM),
    "ImageDecoder": "encoded images aren't supported. Decode the image before the model, and pass its pixels",
}
_CLASSIC = (
    "operators of classic machine learning, such as trees, aren't supported. Run them outside of the model"
)
_TRAINING = "training isn't supported. Export the model for inference"
_UNKNOWN = (
    "the operator isn't known. "
    "Replace it by operators of ONNX or export the model with another version (opset)"
)
# Errors from these modules describe the model; TVM's errors describe TVM.
_READABLE_MODULES = (str(Path(__file__).parents[1]), str(Path(np.__file__).parent))
# Python's own messages, which the interpreter also raises in our modules.
_OF_PYTHON = re.compile(
    r"\w+\(\) (arg|argument|iterable)\b|values to unpack|(list|tuple|string) index out of range"
    r"|not in (list|tuple)|integer division|math domain error|negative shift count|cannot convert float"
    r"|invalid literal"
)


def reason_of(error: Exception, proto: onnx.NodeProto, values: Mapping[str, Value], version: int) -> str:
    """Return why a node can't be imported, without a full stop. `version` is of the operator's domain."""
    if isinstance(error, UnsupportedOperator):
        return f"{error}{_given(proto, values)}"
    _log.info("operator %s: %s: %s", proto.op_type, type(error).__name__, first_line(error))
    found = (
        _mixed_types(proto, values, version)
        or _wrong_type(proto, values, version)
        or _misfit(proto, values)
        or _computed_shape(proto, values)
        or _disallowed(proto, values, version)
    )
    if found:
        return f"{found}{_given(proto, values)}"
    if _has_readable_message(error):
        return f"{first_line(error).rstrip('.')}{_given(proto, values)}"
    told = ", ".join(f"{each.name}={_short(each)}" for each in proto.attribute if each.type != each.GRAPH)
    what = f"attributes ({told})" if told else "types and shapes"
    return f"it isn't supported for these {what}{_given(proto, values)}"


def reason_of_unknown(proto: onnx.NodeProto) -> str:
    """Return why an operator without a converter can't be imported, and what to do; without a full stop."""
    if "training" in proto.domain:
        return _TRAINING
    if proto.domain == "ai.onnx.ml":
        return _CLASSIC
    return _NEVER.get(proto.op_type, _UNKNOWN) if proto.domain in ("", "ai.onnx") else _UNKNOWN


def plain_reason(error: Exception) -> str:
    """Return why an operator can't be imported, without a full stop. TVM's failed checks name its objects, so
    they are only logged.
    """
    if isinstance(error, UnsupportedOperator | NotImplementedError) or _has_readable_message(error):
        return first_line(error).rstrip(".")
    _log.info("%s: %s", type(error).__name__, first_line(error))
    return "it isn't supported for these attributes, types and shapes"


def _has_readable_message(error: BaseException) -> bool:
    """Return whether our code or numpy raised an error of a class whose messages are for users."""
    if not isinstance(error, ValueError | IndexError | MemoryError) or _OF_PYTHON.search(str(error)):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_READABLE_MODULES)


def _schema(proto: onnx.NodeProto, version: int) -> Any:
    try:
        return onnx.defs.get_schema(proto.op_type, version, proto.domain)
    except onnx.defs.SchemaError:
        return None


def _mixed_types(proto: onnx.NodeProto, values: Mapping[str, Value], version: int) -> str:
    """Describe inputs that have different types although ONNX requires one; "" if there are none."""
    schema = _schema(proto, version)
    if schema is None:
        return ""
    formal: Sequence[Any] = schema.inputs
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for position, name in enumerate(proto.input):
        one = formal[min(position, len(formal) - 1)] if formal else None
        # A loop's and a scan's inputs may have any types.
        if one is not None and name in values and getattr(one, "is_homogeneous", True):
            found[one.type_str].setdefault(values[name].dtype, name)
    for dtypes in found.values():
        if len(dtypes) > 1:
            (first, one), (second, other), *_ = dtypes.items()
            return f"'{one}' is {first} and '{other}' is {second}, and ONNX wants one type: add a Cast"
    return ""


def _wrong_type(proto: onnx.NodeProto, values: Mapping[str, Value], version: int) -> str:
    """Describe the first input with a type that ONNX doesn't allow; "" if there is none."""
    schema = _schema(proto, version)
    formal: Sequence[Any] = [] if schema is None else schema.inputs
    for position, name in enumerate(proto.input if formal else ()):
        one = formal[min(position, len(formal) - 1)]
        known = values.get(name)
        if known is not None and f"tensor({_ONNX_NAMES.get(known.dtype, known.dtype)})" not in one.types:
            allowed = sorted(re.findall(r"(?<=^tensor\()\w+(?=\)$)", "\n".join(one.types), re.MULTILINE))
            return (
                f"'{name}' is {known.dtype}, and {proto.op_type} takes {', '.join(allowed)} there: add a Cast"
            )
    return ""


def _misfit(proto: onnx.NodeProto, values: Mapping[str, Value]) -> str:
    """Describe why the shapes of a Conv's or a Reshape's inputs don't fit; "" if they do."""
    known = [values[name] for name in proto.input if name in values]
    if len(known) < 2:
        return ""
    data, other = known[:2]
    if proto.op_type == "Conv" and min(data.rank, other.rank) > 1:
        groups = next((each.i for each in proto.attribute if each.name == "group"), 1)
        channels = other.shape[1] * groups
        if data.shape[1] != channels:
            return f"the data has {data.shape[1]} channels, and the weights are for {channels}"
    if proto.op_type == "Reshape" and other.constant is not None:
        return f"{data.size} elements don't fit the shape {tuple(other.constant.tolist())}"
    return ""


def _computed_shape(proto: onnx.NodeProto, values: Mapping[str, Value]) -> str:
    """Name the first input that decides the result's shape, but isn't a constant; "" if there is none."""
    for position in _SHAPE_INPUTS.get(proto.op_type, ()):
        name = proto.input[position] if position < len(proto.input) else ""
        if name in values and values[name].constant is None:
            return f"'{name}' decides the shape of its result, and must be a constant of the model"
    return ""


def _disallowed(proto: onnx.NodeProto, values: Mapping[str, Value], version: int) -> str:
    """Return the error of ONNX's own shape inference; "" without one."""
    schema = _schema(proto, version)
    if schema is None or any(each.type in (each.GRAPH, each.GRAPHS) for each in proto.attribute):
        return ""
    known = {name: values[name] for name in proto.input if name in values}
    types = {name: value.onnx_type() for name, value in known.items()}
    data = {
        name: numpy_helper.from_array(np.asarray(value.constant), name)
        for name, value in known.items()
        if value.constant is not None and value.size <= _MAX_INFERENCE_ELEMENTS
    }
    try:
        onnx.shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=[onnx.helper.make_opsetid(proto.domain, version)]
        )
    except onnx.shape_inference.InferenceError as error:
        text = re.split(r"\[\w+Error\]", first_line(error))[-1].strip().rstrip(".")
        return f"ONNX doesn't allow its inputs: {text[:1].lower()}{text[1:]}" if text else ""
    except Exception:  # shape inference doesn't know the operator
        return ""
    return ""


def _short(attribute: onnx.AttributeProto) -> str:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return f"'{value.decode(errors='replace')[:MAX_ATTRIBUTE_CHARS]}'"
    if isinstance(value, onnx.TensorProto | onnx.SparseTensorProto):
        return "a tensor"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= MAX_ATTRIBUTE_CHARS else f"{text[:MAX_ATTRIBUTE_CHARS]}..."


def _given(proto: onnx.NodeProto, values: Mapping[str, Value]) -> str:
    known = [values[name] for name in proto.input if name in values]
    return describe_inputs([(value.dtype, value.shape) for value in known])


def describe_inputs(inputs: Sequence[tuple[str, Sequence[int]]]) -> str:
    """Describe the types and shapes of an operator's inputs."""
    types = ", ".join(f"{dtype} {tuple(shape)}" for dtype, shape in inputs[:MAX_INPUTS_SHOWN])
    more = ", ..." if len(inputs) > MAX_INPUTS_SHOWN else ""
    return f" (its inputs are {types}{more})" if inputs else ""

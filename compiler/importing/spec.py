"""Inputs and outputs of a model, and the error for a model that can't be tuned."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field

Shape = tuple[int, ...]
# Types of less than a byte and small floats, and their bits.
NARROW = {
    "int4": 4,
    "uint4": 4,
    "int2": 2,
    "uint2": 2,
    "float4_e2m1fn": 4,
    "float8_e4m3fn": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2": 8,
    "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8,
}
# Compiled code keeps each element of a narrow type as its code in a byte, as ml_dtypes does: in the low bits.
STORAGE = "uint8"
# What to do with a decoder whose cache can't stay in place.
KEEP_AS_FUNCTION = "export it with fixed lengths, to tune it as a function that takes its cache"


class ModelError(ValueError):
    """A model can't be tuned. The message is one sentence for the user with the cause and the next step."""


class CompileError(ModelError):
    """No code can be generated for a model."""

    REASON = "no code can be generated for its types and shapes on this target"

    def __init__(self) -> None:
        super().__init__(f"the model can't be compiled: {self.REASON}. Report this with the model")


class NoReference(Exception):
    """There is no reference runtime that can run the model's file. The message says why."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model; `dtype` is the name of a type of numpy or ml_dtypes.

    An element of a narrow type takes a byte. Of an input, the upper bits don't matter; of an output, they
    are 0.
    Along the `padded_axis` of an output, the data decides how many rows are valid. Valid rows come first. All
    others hold -1, or 0 if the type is boolean or unsigned.
    """

    name: str
    shape: Shape
    dtype: str
    padded_axis: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(extent) for extent in self.shape))
        if any(extent < 0 for extent in self.shape):
            raise ValueError(f"tensor {self.name} has a negative extent: {self.shape}")

    @property
    def storage(self) -> str:
        """The element type of the library's tensor."""
        return storage_of(self.dtype)


@dataclass(frozen=True)
class Derived:
    """An input of a decoder's file that is computed from the number of earlier tokens.

    It is a mask of all tokens so far (`is_mask`), or the positions of the new tokens.
    """

    name: str
    dtype: str
    shape: Shape
    is_mask: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(extent) for extent in self.shape))


@dataclass(frozen=True)
class CacheSpec:
    """The cache of a decoder. Its library writes the rows of new tokens into the `buffers`.

    `position` is the input with the number of earlier tokens. `buffers` maps inputs to the axis of their
    `capacity` rows. `tokens` and `outputs` map inputs and outputs to the axis of the `count` new tokens.
    `derived` are inputs of the file that the library computes. `moved` maps buffers to the axis that their
    rows have in the file; in the library, their rows are last.
    """

    position: str
    capacity: int
    count: int
    buffers: dict[str, int]
    tokens: dict[str, int]
    outputs: dict[str, int]
    derived: tuple[Derived, ...] = ()
    moved: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.count < self.capacity:
            raise ValueError(f"a cache of {self.capacity} tokens can't take {self.count} at once")


def storage_of(dtype: str) -> str:
    """Return the type in which compiled code stores elements of a type."""
    return STORAGE if dtype in NARROW else dtype


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of any library says that memory ran out."""
    is_refused = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or is_refused or "bad_alloc" in str(error)


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error message, cut to 300 characters. Dumps of TVM's objects are
    replaced by their names."""
    lines = [line.strip() for line in without_dumps(str(error)).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


def without_dumps(text: str) -> str:
    """Replace the dumps of TVM's objects by their names, and its syntax by plain numbers and shapes.

    In ir.Op(span=None, ..., name="relax.add", ...), the shapes differ  ->  In add, the shapes differ
    """
    while dump := _DUMP.search(text):
        end = _closing(text, dump.end())
        name = _NAME.search(text[dump.end() : end])
        short = name[1].rpartition(".")[2] if name else dump[1].lower()
        text = f"{text[: dump.start()]}{short}{text[end:]}"
    for syntax, plain in _SYNTAX:
        text = syntax.sub(plain, text)
    return text


# Patterns of TVM's numbers, shapes and constants.
_SYNTAX = (
    (re.compile(r"\bT\.u?int\d+\((-?\d+)\)"), r"\1"),
    (re.compile(r"\bR\.shape\((\[[^\]]*\])\)"), r"\1"),
    (re.compile(r'metadata\["[\w.]+"\]\[\d+\]'), "a constant"),
)
_DUMP = re.compile(r"\b(?:ir|relax|tirx|tvm)\.(?:\w+\.)*([A-Z]\w*)\(")
_NAME = re.compile(r'\bname(?:_hint)?="([\w.]+)"')


def _closing(text: str, start: int) -> int:
    """Return the index after the bracket that closes the one before `start`, or the text's end."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    return len(text)

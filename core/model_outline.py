"""The outline of a model's file: its inputs, outputs and operators, before anything is imported."""

from __future__ import annotations

from dataclasses import dataclass

from core.model_format import ModelFormat
from core.plain_text import without_controls

# The most inputs, outputs and operators of an outline.
MAX_TENSORS = 1000
MAX_OPERATORS = 1000
_MAX_CHARS = 200
_MAX_RANK = 64
_MAX_INT64 = 2**63 - 1


def _shortened(text: str) -> str:
    return without_controls(text)[:_MAX_CHARS]


@dataclass(frozen=True)
class InputOutline:
    """An input. A dimension of `shape` is an extent, or the name of a dynamic dimension, which may be empty.
    The shape is None if the file doesn't say how many dimensions the input has.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _shortened(self.name))
        object.__setattr__(self, "dtype", _shortened(self.dtype))
        if self.shape is not None:
            if len(self.shape) > _MAX_RANK:
                raise ValueError(f"input {self.name} has {len(self.shape)} dimensions, more than {_MAX_RANK}")
            dims = tuple(_shortened(dim) if isinstance(dim, str) else dim for dim in self.shape)
            if not all(isinstance(dim, str) or 0 <= dim <= _MAX_INT64 for dim in dims):
                raise ValueError(f"input {self.name} has an impossible shape: {dims}")
            object.__setattr__(self, "shape", dims)


@dataclass(frozen=True)
class OperatorOutline:
    """An operator that occurs `count` times in the file. The import refuses one that isn't `supported`."""

    name: str
    count: int
    supported: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _shortened(self.name))
        if not 0 < self.count <= _MAX_INT64:
            raise ValueError(f"operator {self.name} can't occur {self.count} times")


@dataclass(frozen=True)
class ModelOutline:
    """The format of a model's file, its inputs, the names of its outputs, and its operators.

    Raises ValueError for impossible values, because a compromised child may send anything.
    """

    format: ModelFormat
    inputs: tuple[InputOutline, ...]
    outputs: tuple[str, ...]
    operators: tuple[OperatorOutline, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", tuple(map(_shortened, self.outputs)))
        if max(len(self.inputs), len(self.outputs)) > MAX_TENSORS:
            raise ValueError(f"the model has more than {MAX_TENSORS} inputs or outputs")
        if len(self.operators) > MAX_OPERATORS:
            raise ValueError(f"the model has more than {MAX_OPERATORS} different operators")

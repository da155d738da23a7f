"""One operator of a model, and a model that is split into its operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from compiler.importing.model import RelaxModel

Array = NDArray[Any]
GIVEN = ".given"


@dataclass(frozen=True)
class Step:
    """One operator: its kind with the kinds inside of it, its name for messages, and the names of values."""

    kinds: frozenset[str]
    label: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class StepwiseModel:
    """A model split into steps, with two ways to compute their values by name.

    `reference` computes them from the model's inputs, as the file defines them. `to_relax` returns the model
    in which every step reads the values of other steps as additional inputs, named with the suffix GIVEN.
    """

    steps: tuple[Step, ...]
    reference: Callable[[Mapping[str, Array]], Mapping[str, Array]]
    to_relax: Callable[[], RelaxModel]

    def given(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Return the additional inputs of the model that `to_relax` returns."""
        return {f"{name}{GIVEN}": values[name] for step in self.steps for name in step.outputs}

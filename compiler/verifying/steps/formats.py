"""Common functions for models of all formats whose reference is PyTorch, XLA or LiteRT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from compiler.importing.formats.exported_program import ExportedProgram
from compiler.importing.formats.stablehlo_model import StablehloModel
from compiler.importing.formats.tflite_model import TfliteModel
from compiler.verifying.steps import exported_program, stablehlo, tflite
from compiler.verifying.steps.step import StepwiseModel

Array = NDArray[Any]
Defined = ExportedProgram | StablehloModel | TfliteModel


def split_into_steps(file: Defined) -> StepwiseModel:
    """Return the steps of a model. Raises NoReference if no installed runtime can run it."""
    match file:
        case ExportedProgram():
            return exported_program.split_into_steps(file)
        case StablehloModel():
            return stablehlo.split_into_steps(file)
        case TfliteModel():
            return tflite.split_into_steps(file)


def index_extents_of(file: Defined) -> Mapping[str, int]:
    """Return the number of indexed parts for each input that holds indices, by name.

    StableHLO clamps indices, so any integer is valid.
    """
    match file:
        case ExportedProgram():
            return exported_program.index_extents(file)
        case StablehloModel():
            return {}
        case TfliteModel():
            return tflite.index_extents(file)


def compute_edge(file: Defined, inputs: Mapping[str, Array]) -> list[Array] | None:
    """Return the outputs for inputs that the reference may refuse, such as a divisor of zero; None if it
    refuses."""
    try:
        return list(file.compute(inputs))
    except Exception:  # PyTorch raises errors of many types
        return None

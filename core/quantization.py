"""The accuracy of a quantized model relative to its float model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.job import Quantize
from core.plain_text import without_controls

# The most layers in a report. For larger models, it lists the layers with the largest errors.
MAX_LAYERS = 2000
_MAX_CHARS = 200
_MAX_DB = 1000.0
_MAX_INT64 = 2**63 - 1


def _check_db(name: str, db: float | None) -> None:
    if db is not None and not -_MAX_DB <= db <= _MAX_DB:
        raise ValueError(f"the signal-to-noise ratio of {name} must be within {_MAX_DB:g} dB, not {db}")


@dataclass(frozen=True)
class LayerAccuracy:
    """A layer's signal-to-noise ratios in decibels: the power of its float32 values over its errors' power.

    `own_db` is measured with the float model's inputs, so it shows only this layer's errors. `total_db` is
    measured with the quantized model's inputs. None means no error. A `kept` layer computes in float32.
    """

    name: str
    operator: str
    kept: bool
    own_db: float | None
    total_db: float | None

    def __post_init__(self) -> None:
        for name in ("name", "operator"):
            object.__setattr__(self, name, without_controls(getattr(self, name))[:_MAX_CHARS])
        _check_db(self.name, self.own_db)
        _check_db(self.name, self.total_db)


@dataclass(frozen=True)
class OutputAccuracy:
    """An output's signal-to-noise ratio in decibels; None without an error."""

    name: str
    db: float | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", without_controls(self.name)[:_MAX_CHARS])
        _check_db(self.name, self.db)


@dataclass(frozen=True)
class Quantization:
    """The parts of a model that were quantized, and their accuracy.

    With `weights_only`, activations stay floats. `samples` is the number of calibration samples that set the
    ranges of values; 0 without calibration data. The accuracy was measured on `compared` samples, or on as
    many random inputs. `layers` are in the order of the model. `kept` is the number of layers that stayed in
    float32. `narrow` is the number of layers whose weights have 7 bits instead of 8.
    """

    quantize: Quantize
    weights_only: bool
    samples: int
    compared: int
    kept: int
    outputs: tuple[OutputAccuracy, ...]
    layers: tuple[LayerAccuracy, ...]
    narrow: int = 0

    def __post_init__(self) -> None:
        numbers = (self.kept, self.narrow, self.samples, self.compared)
        if not (0 <= min(numbers) <= max(numbers) <= _MAX_INT64 and self.compared and self.outputs):
            raise ValueError("a quantization needs compared outputs, and no negative or huge numbers")
        if len(self.layers) > MAX_LAYERS:
            raise ValueError(f"{len(self.layers)} layers are more than {MAX_LAYERS}")

    @property
    def worst_db(self) -> float | None:
        """The lowest ratio of all outputs; None without an error."""
        return min((one.db for one in self.outputs if one.db is not None), default=None)

    @property
    def text(self) -> str:
        """Summarize the quantization and its accuracy in one clause."""
        what = f"weights in {self.quantize}" if self.weights_only else str(self.quantize)
        inputs = f"{self.compared} calibration samples" if self.samples else "random inputs"
        worst = "exactly as" if self.worst_db is None else f"{self.worst_db:.1f} dB signal to noise against"
        narrow = f", weights of {_layers(self.narrow)} in 7 bits" if self.narrow else ""
        kept = f", {_layers(self.kept)} kept in float32" if self.kept else ""
        return f"quantized ({what}): {worst} float32 on {inputs}{narrow}{kept}"


def _layers(number: int) -> str:
    return f"{number} layer{'s'[: number > 1]}"


def decibels(signal: float, noise: float) -> float | None:
    """Return the ratio of two powers in decibels, from -1000 to 1000; None without noise."""
    if noise == 0.0:
        return None
    if not (math.isfinite(signal) and math.isfinite(noise)) or signal == 0.0:
        return -_MAX_DB
    return max(-_MAX_DB, min(_MAX_DB, 10.0 * math.log10(signal / noise)))

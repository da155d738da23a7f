"""Jobs: their states, budgets and options, with the limits of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

MAX_TRIALS = 10_000_000
MAX_MINUTES = 60 * 24 * 366
MAX_PRIORITY = 1_000_000
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
MAX_MODELS = 16
MAX_BATCH = 65_536
# The objectives that every service knows; plug-ins add others.
OBJECTIVE_NAMES = ("sum", "requirements", "speedup", "early-stopping")
# The name of the variants that the option `tf32` enables.
TF32 = "tf32"


class JobState(StrEnum):
    """A job runs through the first five in order; the last three are final."""

    QUEUED = "queued"
    IMPORTING = "importing"
    TUNING = "tuning"
    PUBLISHING = "publishing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        return self in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


UNFINISHED = frozenset(state for state in JobState if not state.finished)


class Build(StrEnum):
    """The machines that compile a job's candidates.

    DEVICE: the devices that measure them. BUILDER: workers that only build. AUTO: the service chooses.
    """

    AUTO = "auto"
    DEVICE = "device"
    BUILDER = "builder"


class Quantize(StrEnum):
    """The type to which a job quantizes a float model before tuning.

    INT8 quantizes weights and, with calibration data, activations. INT4 quantizes only weights.
    """

    NONE = "none"
    INT8 = "int8"
    INT4 = "int4"


class EndReason(StrEnum):
    """The reason why a job's tuning ended."""

    TRIALS = "trials"
    MINUTES = "minutes"
    LATENCY = "latency"
    GAIN = "gain"
    EXHAUSTED = "exhausted"

    @property
    def text(self) -> str:
        return _END_TEXTS[self]


_END_TEXTS = {
    EndReason.TRIALS: "all trials were spent",
    EndReason.MINUTES: "the minutes were up",
    EndReason.LATENCY: "the estimated latency reached the goal",
    EndReason.GAIN: "the next minute was expected to gain too little",
    EndReason.EXHAUSTED: "the search found nothing new to try",
}


@dataclass(frozen=True)
class Budget:
    """The goals of a job; the first one to be reached ends its tuning. None means that a goal isn't set.
    `minutes` is wall-clock time from the end of the import. `latency_s` is the estimated latency of the whole
    model. `min_gain` is the fraction of the latency that the next minute must be expected to gain. Each
    subgraph without a schedule gets one trial, whatever the goals are.

    With `trials` 0, the job compiles with known schedules, and measures a first guess for each subgraph
    without a schedule.
    """

    trials: int
    minutes: float | None = None
    latency_s: float | None = None
    min_gain: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.trials <= MAX_TRIALS:
            raise ValueError(f"trials must be between 0 and {MAX_TRIALS}, not {self.trials}")
        if self.minutes is not None and not 0 < self.minutes <= MAX_MINUTES:
            raise ValueError(f"minutes must be more than 0 and at most {MAX_MINUTES}, not {self.minutes:g}")
        if self.latency_s is not None and not 0 < self.latency_s < math.inf:
            raise ValueError(f"latency_s must be more than 0, not {self.latency_s:g}")
        if self.min_gain is not None and not 0 < self.min_gain < 1:
            raise ValueError(f"min_gain must be a fraction between 0 and 1, not {self.min_gain:g}")


def _about(text: str, least: float | None = None, most: float | None = None) -> dict[str, Any]:
    return {"help": text, "least": least, "most": most}


class JobOptionError(ValueError):
    """A job option is outside its limits or excludes another. `template` has the names in braces."""

    def __init__(self, template: str) -> None:
        self.template = template
        super().__init__(self.text(str))

    def text(self, name_of: Callable[[str], str]) -> str:
        """Return the message with the options' names as `name_of` writes them, such as flags."""
        names = {option.name: name_of(option.name) for option in fields(JobOptions)}
        return self.template.format_map(names)


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options of a job, besides its model, target and goals.

    Requests and jobs inherit these fields, in `records` and in the client. The HTTP bodies and the command
    line's flags are generated from them, with the defaults, helps and limits given here. Raises ValueError
    for a value outside its limits. The message begins with the option's name.
    """

    batch: int | None = field(
        default=None,
        metadata=_about("The leading dimension of inputs, where the model leaves it open.", 1, MAX_BATCH),
    )
    seed: int = field(
        default=0,
        metadata=_about("Seeds the search's random choices; measured times guide it as well.", 0, 2**63 - 1),
    )
    priority: int = field(
        default=0,
        metadata=_about("Jobs of higher priority get the devices first.", -MAX_PRIORITY, MAX_PRIORITY),
    )
    weight: float = field(
        default=1.0,
        metadata=_about(
            "The job's share of the devices among jobs of equal priority.", MIN_WEIGHT, MAX_WEIGHT
        ),
    )
    build: Build = field(
        default=Build.AUTO,
        metadata=_about(
            "Who compiles the candidates: the device, a builder, or automatically, whichever is quicker."
        ),
    )
    exact: bool = field(
        default=False,
        metadata=_about(
            "Allow other orders of sums only: no Winograd convolution, which rounds differently."
        ),
    )
    tf32: bool = field(
        default=False,
        metadata=_about("Let tensor cores of GPUs round factors of float32 to 10 bits of fraction."),
    )
    quantize: Quantize = field(
        default=Quantize.NONE,
        metadata=_about("Quantize the model first: int8, or int4 for the weights of matrix products."),
    )
    calibration: str | None = field(
        default=None,
        metadata=_about(
            "Calibration data: an .npz file (over HTTP, its SHA-256) with an array for each input."
        ),
    )

    def __post_init__(self) -> None:
        for option in fields(JobOptions):
            value, least, most = getattr(self, option.name), option.metadata["least"], option.metadata["most"]
            if isinstance(option.default, StrEnum):
                object.__setattr__(self, option.name, type(option.default)(value))
            elif least is not None and value is not None and not least <= value <= most:
                raise JobOptionError(f"{{{option.name}}} must be between {least} and {most}, not {value}")
        if self.exact and self.tf32:
            raise JobOptionError("{tf32} is not exact: leave {exact} or {tf32} out")
        if self.calibration is not None and self.quantize is Quantize.NONE:
            raise JobOptionError("{calibration} is used to quantize a model: add {quantize} int8")


def options_of(source: object) -> dict[str, Any]:
    """Return the job options of an object that has an attribute for each: a request, a job, a row."""
    return {option.name: getattr(source, option.name) for option in fields(JobOptions)}

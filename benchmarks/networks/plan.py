"""What a network is measured as, and how everyone who runs it takes turns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from benchmarks.device_class import DeviceClass
from benchmarks.networks.session import Manifest
from benchmarks.timing.contestants import ModelFile, ProcessContestant
from benchmarks.timing.cpu_masking import MaskedOnnxRuntime
from benchmarks.timing.deviation import random_inputs
from benchmarks.timing.interleaved import Block
from examples import make_models

TUNED, UNTUNED = "tunefarm", "TVM untuned"
EXPORTED = "TVM with tunefarm's exported database"
SEEDS = range(5)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A network, and the turns: everyone has as many `threads`, and the instructions of `device_class`.

    `masked` is the ONNX Runtime of a device class that gives something up.
    """

    network: str
    tiny: bool
    threads: int
    rounds: int
    block: Block
    device_class: DeviceClass
    masked: MaskedOnnxRuntime | None

    @property
    def label(self) -> str:
        return f"{self.network}-tiny" if self.tiny else self.network

    def write(self, folder: Path) -> Path:
        """The network as an ONNX file."""
        model = folder / f"{self.label}.onnx"
        onnx.save(make_models.make(self.network, tiny=self.tiny), model)
        return model


def inputs_of(manifest: Manifest) -> list[list[NDArray[Any]]]:
    """A few sets of random inputs; the first is what everyone is timed with."""
    specs = [(one.shape, one.dtype) for one in manifest.inputs]
    return [random_inputs(specs, seed) for seed in SEEDS]


@contextlib.contextmanager
def contestants(
    files: Mapping[str, ModelFile], inputs: list[list[NDArray[Any]]], plan: Plan
) -> Iterator[dict[str, ProcessContestant]]:
    """Everyone in a process of its own, ready to be timed."""
    with ExitStack() as processes:
        yield {
            name: processes.enter_context(ProcessContestant(file, plan.threads, inputs[0]))
            for name, file in files.items()
        }

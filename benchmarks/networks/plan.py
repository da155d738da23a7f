"""The plan for measuring a network: its model, the inputs, and contestants that take turns."""

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
from benchmarks.networks.session import Manifest, Tuning
from benchmarks.results.metrics import BATCH
from benchmarks.timing.contestants import ModelFile, ProcessContestant, TvmLibrary
from benchmarks.timing.cpu_masking import MaskedPackage
from benchmarks.timing.deviation import random_inputs
from benchmarks.timing.interleaved import Block, Timings, measure
from examples import make_models

TUNED, UNTUNED = "tunefarm", "TVM untuned"
EXPORTED = "TVM with tunefarm's exported database"
SEEDS = range(5)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A network with inputs of `batch` images or texts, and the turns of its contestants, each with `threads`
    threads and the instructions of `device_class`.

    `masked` has the packages of peers by name, for a device class with disabled features.
    """

    network: str
    batch: int
    tiny: bool
    threads: int
    rounds: int
    block: Block
    device_class: DeviceClass
    masked: Mapping[str, MaskedPackage]

    @property
    def label(self) -> str:
        batch = f"{BATCH}{self.batch}" if self.batch > 1 else ""
        return f"{self.network}{'-tiny' if self.tiny else ''}{batch}"

    def write(self, folder: Path) -> Path:
        """Write the network as an ONNX file into `folder`; return the file."""
        model = folder / f"{self.label}.onnx"
        onnx.save(make_models.make(self.network, batch=self.batch, tiny=self.tiny), model)
        return model


def inputs_of(manifest: Manifest) -> list[list[NDArray[Any]]]:
    """Return a set of random inputs for each of SEEDS. Contestants are timed with the first."""
    specs = [(one.shape, one.dtype) for one in manifest.inputs]
    return [random_inputs(specs, seed) for seed in SEEDS]


def time_alone(tuning: Tuning, plan: Plan) -> Timings:
    """Time a job's artifact right after publishing, in its own process and without turns, as its user does.
    The machine's state has hardly changed since."""
    user = "a user's process"
    with contestants({user: TvmLibrary(tuning.library)}, inputs_of(tuning.manifest), plan) as running:
        return measure(running, plan.rounds, plan.block)[user]


@contextlib.contextmanager
def contestants(
    files: Mapping[str, ModelFile], inputs: list[list[NDArray[Any]]], plan: Plan
) -> Iterator[dict[str, ProcessContestant]]:
    """Yield every contestant, each loaded in its own process."""
    with ExitStack() as processes:
        yield {
            name: processes.enter_context(ProcessContestant(file, plan.threads, inputs[0]))
            for name, file in files.items()
        }

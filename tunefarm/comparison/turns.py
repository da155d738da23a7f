"""Time runtimes in turns, so that slow minutes of the machine affect all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tunefarm_runtime

from core.decoder_inputs import inputs_of_file
from system.energy import EnergyMeter
from tunefarm.comparison.contestants import (
    Arrays,
    CompiledModel,
    Contestant,
    ContestantError,
    Runtime,
)

TURN_S = 0.25
MIN_ROUNDS = 5


@dataclass(frozen=True)
class Row:
    """One runtime: seconds of a call, seconds to load, bytes of memory and on disk, joules of a call.

    `joules` is the energy of the processor's packages or of the board during its turns, divided by its calls;
    0 if the machine doesn't tell.
    `ratio` is its latency divided by the compiled model's in the same round: the median of all rounds, and
    the 10th and 90th percentile. `error` says why the runtime couldn't run the model; the rest is 0 then.
    """

    name: str
    median_s: float = 0.0
    p10_s: float = 0.0
    p90_s: float = 0.0
    load_s: float = 0.0
    peak_bytes: int = 0
    disk_bytes: int = 0
    joules: float = 0.0
    ratio: float = 0.0
    ratio_p10: float = 0.0
    ratio_p90: float = 0.0
    error: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Comparison:
    """The compiled model is the first row; the others are its peers."""

    threads: int
    rounds: int
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    folder: Path,
    peers: Sequence[Runtime],
    threads: int | None = None,
    seconds: float = 15.0,
    progress: Callable[[str], None] = lambda line: None,
) -> Comparison:
    """Time a compiled model and its peers in turns, on random inputs, for about `seconds`.

    Raises LoadError if the compiled model can't be loaded, and ContestantError if it can't be run.
    """
    model = tunefarm_runtime.load(folder)
    rng = np.random.default_rng(0)
    inputs = {one.name: one.draw(rng) for one in model.inputs}
    of_file: Arrays = inputs
    if model.cache is not None:  # the decoder's step that fills its cache
        inputs[model.cache.position] = np.array([model.cache.capacity - model.cache.count])
        of_file = inputs_of_file(model.cache, inputs)
    count = threads or model.threads
    with ExitStack() as stack:
        progress("loading the compiled model")
        own = stack.enter_context(Contestant(CompiledModel(folder), count, inputs))
        entries: list[tuple[Runtime, Contestant]] = [(CompiledModel(folder), own)]
        failed: list[Row] = []
        for peer in peers:
            progress(f"loading {peer.path.name} in {peer.name}")
            try:
                entries.append((peer, stack.enter_context(Contestant(peer, count, of_file))))
            except ContestantError as error:
                failed.append(Row(peer.name, error=str(error)))
        rounds: list[list[float]] = []
        calls: list[list[float]] = [[] for _ in entries]
        meter = EnergyMeter.find()
        spans: list[list[tuple[float, float]]] = [[] for _ in entries]
        end = time.monotonic() + seconds
        with meter or nullcontext():
            while len(rounds) < MIN_ROUNDS or time.monotonic() < end:
                progress(f"round {len(rounds) + 1}, {max(0.0, end - time.monotonic()):.0f} s left")
                secs = []
                for index, (_, contestant) in enumerate(entries):
                    began_s = time.monotonic()
                    secs.append(contestant.time_calls(TURN_S))
                    spans[index].append((began_s, time.monotonic()))
                rounds.append([float(np.median(one)) for one in secs])
                for all_of, new in zip(calls, secs, strict=True):
                    all_of += new
        rows = []
        for index, (runtime, contestant) in enumerate(entries):
            ratios = [one[index] / one[0] for one in rounds]
            p10, median, p90 = np.percentile(calls[index], [10, 50, 90])
            joules = sum(meter.joules(*span) or 0.0 for span in spans[index]) if meter else 0.0
            low, middle, high = np.percentile(ratios, [10, 50, 90])
            rows.append(
                Row(
                    runtime.name,
                    float(median),
                    float(p10),
                    float(p90),
                    contestant.load_s,
                    contestant.peak_bytes(),
                    _disk_bytes(runtime.path),
                    # Each turn has a first call that isn't timed.
                    joules / (len(calls[index]) + len(rounds)),
                    float(middle),
                    float(low),
                    float(high),
                )
            )
    return Comparison(count, len(rounds), (*rows, *failed))


def _disk_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())

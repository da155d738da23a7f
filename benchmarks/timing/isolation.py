"""Measure operators in order, each in its own process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from benchmarks.engines.tunefarm_search import EmptySpace
from benchmarks.results.output import Output
from benchmarks.timing.contestants import spawn_process
from compiler.reading.subgraph import UnsupportedSubgraph

Result = TypeVar("Result")


class MeasurementFailed(Exception):
    """An operator could not be measured; the message says which and why."""


def run_isolated(name: str, threads: int, run: Callable[..., Result], *given: object) -> Result:
    """Call `run` in a new process, so that a crash costs one operator only. Raises MeasurementFailed."""
    os.environ["TVM_NUM_THREADS"] = str(threads)
    try:
        with spawn_process() as process:
            return process.submit(run, *given).result()
    except UnsupportedSubgraph as error:
        raise MeasurementFailed(f"our search does not support {name}: {error}") from error
    except EmptySpace as error:
        raise MeasurementFailed(f"our search finds no valid program of {name}: {error}") from error
    except BrokenProcessPool as error:
        raise MeasurementFailed(f"a candidate of {name} ended the process that timed it") from error
    except RuntimeError as error:
        raise MeasurementFailed(f"{name} could not be measured: {error}") from error


def measure_each(
    names: Sequence[str],
    expected_s: float,
    measure: Callable[[str], None],
    output: Output,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measure every operator and say how long is left; return how many could not be measured."""
    failures = 0
    start_s = clock()
    for done, name in enumerate(names):
        each_s = (clock() - start_s) / done if done else expected_s
        left_min = max(1, round(each_s * (len(names) - done) / 60))
        output.say(f"{name} ({done + 1} of {len(names)}, about {left_min} min left)")
        try:
            measure(name)
        except MeasurementFailed as error:
            output.fail(error)
            failures += 1
    return failures

"""The file of measured programs of many layers and device classes, which a fit reads."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.suite import OPERATORS, Shape
from compiler.reading.subgraph import read_dag
from core.device import Device
from core.profile import Profile
from search.programs.nest import Floats
from search.programs.program import Population, Program, from_json, gather
from search.rules.space import generate
from search.sketches.factors import Ints
from search.sketches.sketch import Sketch


class ProgramsError(ValueError):
    """A file has no measured programs that this version can read. The message is one sentence."""


@dataclass(frozen=True)
class Group:
    """Programs of one layer on one device class: one population for each sketch, and `seconds` [programs],
    the median of each program's measurements.

    `name` is the layer's name, `operator` the name of its operator in the suite. The layer has that
    operator's form with `shape` and `batch`. `order` [programs] grows in the order of the first measurements.
    `repeat_errors` are the logarithms of second measurements relative to first ones, of the programs that
    were measured twice.
    """

    name: str
    operator: str
    shape: Shape
    batch: int
    device_class: str
    device: Device
    populations: tuple[Population, ...]
    seconds: Floats
    order: Ints
    repeat_errors: Floats


@dataclass
class Measurements:
    """The measurements of a layer's programs, to make a group of."""

    _of_program: dict[Program, tuple[int, list[float]]] = field(default_factory=dict)

    def add(self, number: int, program: Program, seconds: float) -> None:
        """Add a measurement; numbers grow in the order of all measurements."""
        self._of_program.setdefault(program, (number, []))[1].append(seconds)

    def group(
        self, name: str, operator: str, shape: Shape, batch: int, device_class: str, device: Device
    ) -> Group | None:
        """Return the programs as a group; None if there are none."""
        by_sketch: defaultdict[str, list[Program]] = defaultdict(list)
        for program in self._of_program:
            by_sketch[program.sketch.key].append(program)
        found = [self._of_program[program] for programs in by_sketch.values() for program in programs]
        if not found:
            return None
        return Group(
            name,
            operator,
            shape,
            batch,
            device_class,
            device,
            tuple(gather(programs) for programs in by_sketch.values()),
            np.array([statistics.median(seconds) for _, seconds in found]),
            np.array([number for number, _ in found]),
            np.array([math.log(seconds[1] / seconds[0]) for _, seconds in found if len(seconds) > 1]),
        )


def line_of_device(name: str, device: Device) -> str:
    """Return the file's line for a device class, which precedes its programs."""
    return json.dumps({"device_class": name, "device": device.to_json(), "profile": device.speeds.to_json()})


def line_of_program(
    name: str, operator: str, shape: Shape, batch: int, device_class: str, program: Program, seconds: float
) -> str:
    """Return the file's line for a program and its seconds, inf for a failure."""
    return json.dumps(
        {
            "layer": name,
            "operator": operator,
            "shape": shape,
            "batch": batch,
            "device_class": device_class,
            "program": program.to_json(),
            "seconds": seconds if math.isfinite(seconds) else None,
        }
    )


def read(path: Path) -> list[Group]:
    """Read the groups. Leave out programs that failed, and programs of sketches that the rules no longer
    derive.

    Raises ProgramsError.
    """
    devices: dict[str, Device] = {}
    found: defaultdict[tuple[str, str], list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
    try:
        for number, line in enumerate(path.read_text().splitlines()):
            row = json.loads(line)
            if "device" in row:
                devices[row["device_class"]] = _device(row)
            elif row["seconds"] is not None:
                found[row["layer"], row["device_class"]].append((number, row))
        return [
            group
            for (_, device_class), rows in found.items()
            if (group := _group(rows, device_class, devices[device_class])) is not None
        ]
    except OSError as error:
        raise ProgramsError(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ProgramsError(f"{path} holds no measured programs: {error}") from error


def _device(row: Mapping[str, Any]) -> Device:
    device = Device.from_json(row["device"])
    object.__setattr__(device, "profile", Profile.from_json(row["profile"]))
    return device


@cache
def _sketches(operator: str, shape: Shape, batch: int, device: Device) -> tuple[Sketch, ...]:
    return generate(read_dag(OPERATORS[operator].module(shape, batch)), device)


def _group(rows: Iterable[tuple[int, Mapping[str, Any]]], device_class: str, device: Device) -> Group | None:
    measurements = Measurements()
    layer: tuple[str, str, Shape, int] = "", "", (), 1
    for number, row in rows:
        layer = row["layer"], row["operator"], tuple(row["shape"]), row["batch"]
        sketches = _sketches(*layer[1:], device)
        with suppress(ValueError):  # the rules don't derive its sketch any more
            measurements.add(number, from_json(sketches, row["program"]), row["seconds"])
    return measurements.group(*layer, device_class, device)

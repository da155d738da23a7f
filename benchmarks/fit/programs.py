"""The file of measured programs of many layers and device classes, which a fit reads."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
from search.sketches.sketch import Sketch


class ProgramsError(ValueError):
    """A file has no measured programs that this version can read. The message is one sentence."""


@dataclass(frozen=True)
class Group:
    """Programs of one layer on one device class: one population for each sketch, and `seconds` [programs].

    `name` is the layer's name, `operator` the name of its operator in the suite. The layer has that
    operator's form with `shape` and `batch`.
    """

    name: str
    operator: str
    shape: Shape
    batch: int
    device_class: str
    device: Device
    populations: tuple[Population, ...]
    seconds: Floats


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
    found: defaultdict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    try:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if "device" in row:
                devices[row["device_class"]] = _device(row)
            elif row["seconds"] is not None:
                found[row["layer"], row["device_class"]].append(row)
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


def _group(rows: Iterable[Mapping[str, Any]], device_class: str, device: Device) -> Group | None:
    by_sketch: defaultdict[str, list[tuple[Program, float]]] = defaultdict(list)
    layer: tuple[str, str, Shape, int] = "", "", (), 1
    for row in rows:
        layer = row["layer"], row["operator"], tuple(row["shape"]), row["batch"]
        sketches = _sketches(*layer[1:], device)
        try:
            program = from_json(sketches, row["program"])
        except ValueError:
            continue
        by_sketch[program.sketch.key].append((program, row["seconds"]))
    if not by_sketch:
        return None
    return Group(
        *layer,
        device_class,
        device,
        tuple(gather([program for program, _ in programs]) for programs in by_sketch.values()),
        np.array([seconds for programs in by_sketch.values() for _, seconds in programs]),
    )

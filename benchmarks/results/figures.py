"""Figures: a benchmark's numbers with their aims and peers, as JSON and as a table."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from rich.table import Table

from benchmarks.timing.interleaved import Median

# The subject of a mean begins with this.
MEAN = "geometric mean"


class FiguresError(ValueError):
    """A file doesn't have a benchmark's figures. The message is one sentence."""


_ALWAYS_WRITTEN = ("name", "value", "unit", "metric", "peer", "aim", "reached", "spread")


@dataclass(frozen=True)
class Figure:
    """One number of a benchmark. Create it by `figure`, which composes `name` from the other fields.

    metric: what was measured, such as "latency". A ratio also has a `peer`.
    unit: "x" for a ratio, empty for a count.
    peer: what a ratio compares with, such as "ONNX Runtime"
    subject: what was measured: a network, an operator, a process; empty for the whole run
    condition: how it was measured, such as "after 64 trials"
    device_class: the device class, if a run measures several
    count: how many subjects a mean or a share is taken over
    aim, bound: the bound in words, and as a number
    reached: whether the value keeps the bound
    spread: the 10th and the 90th percentile of the blocks, in the value's unit; the value is their median
    note: details for the reader
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    value: float
    unit: str
    metric: str
    peer: str | None = None
    subject: str = ""
    condition: str = ""
    device_class: str = ""
    count: int | None = None
    aim: str | None = None
    bound: float | None = None
    reached: bool | None = None
    spread: tuple[float, float] | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.value, *(self.spread or ())))):
            raise ValueError(f"{self.name} is {self.value} {self.spread or ''}, which is no measurement")
        if not (self.aim is None) == (self.bound is None) == (self.reached is None):
            raise ValueError(f"{self.name} needs all of aim, bound and reached, or none of them")

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the fields that tell a subject's figures apart: metric, peer, condition."""
        return self.metric, self.peer or "", self.condition

    @property
    def measured(self) -> str:
        """Return the figure's name without its subject."""
        return _measured(self.metric, self.peer, self.condition)

    @property
    def verdict(self) -> str:
        """Return the aim and whether it was reached; "" without an aim."""
        return "" if self.aim is None else f"{self.aim}: {'reached' if self.reached else 'missed'}"


@dataclass(frozen=True)
class Results:
    """A benchmark's run: its figures, the machine, date, command and commit.

    `instruction_set` is the largest one that the run could use, a value of machine.INSTRUCTION_SETS.
    `instruction_set` and `commit` are "" if unknown.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    figures: tuple[Figure, ...]
    machine: str
    date: str
    command: str
    commit: str = ""
    instruction_set: str = ""

    def write(self, path: Path) -> None:
        """Replace the file atomically. Raises OSError.

        Empty fields that are not in _ALWAYS_WRITTEN are left out.
        """
        contents = asdict(self)
        for found in contents["figures"]:
            for key in [key for key in found if key not in _ALWAYS_WRITTEN and found[key] in ("", None)]:
                del found[key]
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(json.dumps(contents, indent=1) + "\n")
        fresh.replace(path)


_RESULTS = TypeAdapter(Results)


def read(path: Path) -> Results:
    """Read a file of figures. Raises FiguresError if it can't be read or is invalid."""
    try:
        return _RESULTS.validate_json(path.read_bytes())
    except OSError as error:
        raise FiguresError(f"{path} can't be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise FiguresError(f"{path} holds no figures: {where}: {first['msg'].lower()}") from error


@dataclass(frozen=True)
class Aim:
    """A bound, in words and as a number, and a function that tests whether a value keeps it."""

    words: str
    bound: float
    kept: Callable[[float], bool]


def at_least(bound: float) -> Aim:
    """Return an aim that values of at least `bound` reach."""
    return Aim(f"at least {number(bound)}", bound, lambda value: value >= bound)


def at_most(bound: float) -> Aim:
    """Return an aim that values of at most `bound` reach."""
    return Aim(f"at most {number(bound)}", bound, lambda value: value <= bound)


def figure(
    metric: str,
    value: float,
    unit: str,
    *,
    peer: str | None = None,
    subject: str = "",
    condition: str = "",
    device_class: str = "",
    count: int | None = None,
    aim: Aim | None = None,
    spread: tuple[float, float] | None = None,
    note: str = "",
) -> Figure:
    """Return a figure with its name, and whether `value` reaches `aim`."""
    label = ", ".join(filter(None, (device_class, subject)))
    measured = _measured(metric, peer, condition)
    return Figure(
        f"{label}: {measured}" if label else measured,
        value,
        unit,
        metric,
        peer,
        subject,
        condition,
        device_class,
        count,
        aim=aim.words if aim else None,
        bound=aim.bound if aim else None,
        reached=aim.kept(value) if aim else None,
        spread=spread,
        note=note,
    )


def ratio_figure(
    metric: str,
    ratio: Median,
    peer: str,
    subject: str,
    *,
    condition: str = "",
    device_class: str = "",
    aim: Aim | None = None,
    note: str = "",
) -> Figure:
    """Return the figure of a ratio to a peer, with the ratio's spread."""
    return figure(
        metric,
        ratio.value,
        "x",
        peer=peer,
        subject=subject,
        condition=condition,
        device_class=device_class,
        aim=aim,
        spread=ratio.spread,
        note=note,
    )


def mean_figure(
    metric: str,
    values: Mapping[str, float | None],
    unit: str,
    *,
    of: str = "operators",
    aim: Aim | None = None,
    peer: str | None = None,
    condition: str = "",
    device_class: str = "",
) -> list[Figure]:
    """Return a list with the figure of the geometric mean over the subjects with a value; [] if there is
    none.

    Its `note` names the lowest, the highest and the subjects without a value.
    """
    known = {subject: value for subject, value in values.items() if value is not None}
    if not known:
        return []
    lowest, highest = min(known, key=lambda key: known[key]), max(known, key=lambda key: known[key])
    note = f"{number(known[lowest])} ({lowest}) .. {number(known[highest])} ({highest})"
    without = [subject for subject in values if subject not in known]
    mean = figure(
        metric,
        statistics.geometric_mean(known.values()),
        unit,
        peer=peer,
        subject=f"{MEAN} of {len(known)} {of}",
        condition=condition,
        device_class=device_class,
        count=len(known),
        aim=aim,
        note=note + (f"; without {', '.join(without)}" if without else ""),
    )
    return [mean]


def _measured(metric: str, peer: str | None, condition: str) -> str:
    joined = "over" if metric.endswith("speed-up") else "relative to"
    return ", ".join(filter(None, (f"{metric} {joined} {peer}" if peer else metric, condition)))


def number(value: float) -> str:
    """Format a number with three digits, and without an exponent between 1000 and 1e9."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def cells(found: Figure) -> tuple[str, str, str, str, str]:
    """Return the cells of a table's row: name, value, spread, aim, note."""
    spread = f"{number(found.spread[0])} .. {number(found.spread[1])}" if found.spread else ""
    return found.name, f"{number(found.value)} {found.unit}".strip(), spread, found.verdict, found.note


HEADERS = ("figure", "value", "p10 .. p90", "aim", "details")


def table(figures: Sequence[Figure]) -> Table:
    """Return a table for the terminal, with reached aims in green and missed ones in red."""
    drawn = Table(box=None, pad_edge=False)
    for header in HEADERS:
        drawn.add_column(header, justify="right" if header in HEADERS[1:3] else "left")
    for each in figures:
        style = {None: None, True: "green", False: "red"}[each.reached]
        drawn.add_row(*cells(each), style=style)
    return drawn

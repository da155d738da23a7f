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


class FiguresError(ValueError):
    """A file does not hold a benchmark's figures; the message is one sentence."""


@dataclass(frozen=True)
class Figure:
    """One number. `aim` is its bound in words, `reached` whether the value keeps it; both None without an
    aim.

    `peer` says what the value is compared with. `spread` is the 10th and 90th percentile, in the value's
    unit, of the blocks whose median the value is.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    value: float
    unit: str
    aim: str | None = None
    reached: bool | None = None
    peer: str | None = None
    spread: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.value, *(self.spread or ())))):
            raise ValueError(f"{self.name} is {self.value} {self.spread or ''}, which is no measurement")
        if (self.aim is None) != (self.reached is None):
            raise ValueError(f"{self.name} has an aim that is neither reached nor missed, or no aim at all")


@dataclass(frozen=True)
class Results:
    """A benchmark's run: its figures, and where, when, how and at which commit they were measured.

    `commit` is empty where that isn't known.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    figures: tuple[Figure, ...]
    machine: str
    date: str
    command: str
    commit: str = ""

    def write(self, path: Path) -> None:
        """Replace the file at once when the new contents are complete. Raises OSError."""
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(json.dumps(asdict(self), indent=1) + "\n")
        fresh.replace(path)


_RESULTS = TypeAdapter(Results)


def read(path: Path) -> Results:
    """Raises FiguresError when the file can't be read or holds anything else."""
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
    """A bound in words, and whether a value keeps it."""

    words: str
    kept: Callable[[float], bool]


def at_least(bound: float) -> Aim:
    """Return the aim that values of `bound` and more reach."""
    return Aim(f"at least {number(bound)}", lambda value: value >= bound)


def at_most(bound: float) -> Aim:
    """Return the aim that values of `bound` and less reach."""
    return Aim(f"at most {number(bound)}", lambda value: value <= bound)


def figure(
    name: str,
    value: float,
    unit: str,
    *,
    aim: Aim | None = None,
    peer: str | None = None,
    spread: tuple[float, float] | None = None,
) -> Figure:
    """Return a figure that says whether `value` reaches `aim`."""
    if aim is None:
        return Figure(name, value, unit, peer=peer, spread=spread)
    return Figure(name, value, unit, aim.words, aim.kept(value), peer, spread)


def mean_figure(
    name: str, values: Mapping[str, float | None], unit: str, aim: Aim | None = None
) -> list[Figure]:
    """Return one figure, the geometric mean over the operators that have a value; none when no operator has.

    Its `peer` names the lowest, the highest and the operators without a value.
    """
    known = {operator: value for operator, value in values.items() if value is not None}
    if not known:
        return []
    lowest, highest = min(known, key=lambda key: known[key]), max(known, key=lambda key: known[key])
    peer = f"{number(known[lowest])} ({lowest}) .. {number(known[highest])} ({highest})"
    without = [operator for operator in values if operator not in known]
    peer += f"; without {', '.join(without)}" if without else ""
    mean = statistics.geometric_mean(known.values())
    return [figure(f"geometric mean of {len(known)} operators: {name}", mean, unit, aim=aim, peer=peer)]


def number(value: float) -> str:
    """Format with three digits; no exponent between 1000 and 1e9."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def cells(found: Figure) -> tuple[str, str, str, str, str]:
    """Return the cells of a table's row: name, value, spread, aim, peer."""
    spread = f"{number(found.spread[0])} .. {number(found.spread[1])}" if found.spread else ""
    aim = "" if found.aim is None else f"{found.aim}: {'reached' if found.reached else 'missed'}"
    return found.name, f"{number(found.value)} {found.unit}".strip(), spread, aim, found.peer or ""


HEADERS = ("figure", "value", "p10 .. p90", "aim", "compared with")


def table(figures: Sequence[Figure]) -> Table:
    """Return a table for the terminal, reached aims green and missed ones red."""
    drawn = Table(box=None, pad_edge=False)
    for header in HEADERS:
        drawn.add_column(header, justify="right" if header in HEADERS[1:3] else "left")
    for each in figures:
        style = {None: None, True: "green", False: "red"}[each.reached]
        drawn.add_row(*cells(each), style=style)
    return drawn

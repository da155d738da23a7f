"""Figures: what a benchmark found, what it aimed at and whom it compared with; as JSON and as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from rich.table import Table


class FiguresError(ValueError):
    """A file does not hold a benchmark's figures; one sentence for people."""


@dataclass(frozen=True)
class Figure:
    """One number. `aim` is the bound in words, `reached` whether it is kept; both None without an aim.

    `peer` says what the value is compared with. `spread` is the 10th and 90th percentile of the blocks
    that the value is the median of, in its unit.
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
        """Raises OSError. A file that is there keeps its contents until the new ones are complete."""
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
    """A bound that a figure should keep."""

    words: str
    kept: Callable[[float], bool]


def at_least(bound: float) -> Aim:
    """Kept by `bound` and what is above it."""
    return Aim(f"at least {number(bound)}", lambda value: value >= bound)


def at_most(bound: float) -> Aim:
    """Kept by `bound` and what is below it."""
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
    """A figure that is held against its aim, if it has one."""
    if aim is None:
        return Figure(name, value, unit, peer=peer, spread=spread)
    return Figure(name, value, unit, aim.words, aim.kept(value), peer, spread)


def number(value: float) -> str:
    """Three digits, and never an exponent where digits will do."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def cells(found: Figure) -> tuple[str, str, str, str, str]:
    """The figure in words: name, value, spread, aim, peer."""
    spread = f"{number(found.spread[0])} .. {number(found.spread[1])}" if found.spread else ""
    aim = "" if found.aim is None else f"{found.aim}: {'reached' if found.reached else 'missed'}"
    return found.name, f"{number(found.value)} {found.unit}".strip(), spread, aim, found.peer or ""


HEADERS = ("figure", "value", "p10 .. p90", "aim", "compared with")


def table(figures: Sequence[Figure]) -> Table:
    """For the terminal."""
    drawn = Table(box=None, pad_edge=False)
    for header in HEADERS:
        drawn.add_column(header, justify="right" if header in HEADERS[1:3] else "left")
    for each in figures:
        style = {None: None, True: "green", False: "red"}[each.reached]
        drawn.add_row(*cells(each), style=style)
    return drawn

"""How fast random programs were, an operator at a time; kept beside a benchmark's figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter


@dataclass(frozen=True)
class RandomPrograms:
    """Seconds of every random program of each engine that ran, fastest first."""

    operator: str
    ours_s: tuple[float, ...]
    theirs_s: tuple[float, ...]


_DRAWN = TypeAdapter(RandomPrograms)


def beside(figures: Path) -> Path:
    """Where the programs of a file of figures are kept, an operator a line."""
    return figures.with_suffix(".drawn.jsonl")


def write(drawn: Sequence[RandomPrograms], path: Path) -> None:
    path.write_text("".join(json.dumps(asdict(each)) + "\n" for each in drawn))


def read(path: Path) -> tuple[RandomPrograms, ...]:
    """Empty where no file is. Raises ValueError when it holds anything else."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return tuple(map(_DRAWN.validate_json, lines))

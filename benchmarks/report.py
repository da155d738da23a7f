"""Rewrites the measured sections of docs/benchmarks.md, and its plots, from files of figures.

    python -m benchmarks.report docs/benchmarks/networks.json

The figures in NAME.json go between `<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import curves, figures
from benchmarks.curves import Curve
from benchmarks.figures import FiguresError, Results


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__.split("\n")[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="JSON")
    parser.add_argument("--document", type=Path, default=Path("docs/benchmarks.md"))
    parser.add_argument("--plots", type=Path, default=Path("docs/plots"), metavar="DIR")
    args = parser.parse_args(argv)
    try:
        text = args.document.read_text()
        for file in args.files:
            text = replace_section(text, file.stem, _section(file, args.document, args.plots))
        args.document.write_text(text)
    except (FiguresError, OSError) as error:
        print(f"benchmarks.report: {error}", file=sys.stderr)
        return 1
    return 0


def replace_section(document: str, name: str, content: str) -> str:
    """The document with another content between the section's marks. Raises FiguresError without them."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"({re.escape(begin)}\n).*?({re.escape(end)})", re.DOTALL)
    replaced, count = pattern.subn(lambda found: f"{found[1]}\n{content}\n{found[2]}", document)
    if count != 1:
        raise FiguresError(f"the document has {count} sections between {begin} and {end}: write one")
    return replaced


def markdown(results: Results) -> str:
    """The figures as a table, with where they come from."""
    rows = [figures.HEADERS, ("---",) * len(figures.HEADERS), *map(figures.cells, results.figures)]
    lines = [f"| {' | '.join(_escaped(cell) for cell in row)} |" for row in rows]
    source = f"Measured {results.date} with `{results.command}` on {results.machine}."
    return "\n".join([source, "", *lines, ""])


def _section(file: Path, document: Path, plots: Path) -> str:
    parts = [markdown(figures.read(file))]
    for curve in _curves(file):
        drawn = _draw(curve, plots / f"{file.stem}-{curve.network}.svg")
        address = Path(os.path.relpath(drawn, document.parent)).as_posix()
        parts.append(f"![{curve.network}: latency while it is tuned]({address})\n")
    return "\n".join(parts)


def _curves(file: Path) -> tuple[Curve, ...]:
    path = curves.beside(file)
    try:
        return curves.read(path)
    except ValueError as error:
        raise FiguresError(f"{path} holds no curves: measure again or remove it") from error


def _draw(curve: Curve, path: Path) -> Path:
    from benchmarks import plots  # slow to import, and not needed by tables

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(plots.draw(curve))
    return path


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())

"""Rewrites the measured sections of docs/benchmarks.md, and its plots, from files of figures.

    python -m benchmarks.report docs/benchmarks/networks.json docs/benchmarks/space.json

The figures in NAME.json go between `<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.results import curves, figures, random_programs, searches
from benchmarks.results.curves import Curve
from benchmarks.results.figures import FiguresError, Results
from benchmarks.results.random_programs import RandomPrograms
from benchmarks.results.searches import Search


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
    for name, what, image in _images(file):
        path = plots / f"{file.stem}-{name}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
        address = Path(os.path.relpath(path, document.parent)).as_posix()
        parts.append(f"![{what}]({address})\n")
    return "\n".join(parts)


def _images(file: Path) -> Iterator[tuple[str, str, bytes]]:
    """Name, description and SVG of every plot of what is kept beside a file of figures."""
    from benchmarks.report import plots  # slow to import, and not needed by tables

    for curve in _curves(file):
        yield curve.network, f"{curve.network}: latency while it is tuned", plots.draw(curve)
    programs = _drawn(file)
    if programs:
        yield "random", "latencies of random programs", plots.draw_drawn(programs)
    found = [search for search in _searches(file) if search.points]
    if found:
        what = "best latency of every search against"
        yield "seconds", f"{what} seconds", plots.draw_searches_by_seconds(found)
        yield "trials", f"{what} trials", plots.draw_searches_by_trials(found)


def _curves(file: Path) -> tuple[Curve, ...]:
    path = curves.beside(file)
    try:
        return curves.read(path)
    except ValueError as error:
        raise FiguresError(f"{path} holds no curves: measure again or remove it") from error


def _drawn(file: Path) -> tuple[RandomPrograms, ...]:
    path = random_programs.beside(file)
    try:
        return random_programs.read(path)
    except ValueError as error:
        raise FiguresError(f"{path} holds no random programs: measure again or remove it") from error


def _searches(file: Path) -> tuple[Search, ...]:
    path = searches.beside(file)
    try:
        return searches.read(path)
    except ValueError as error:
        raise FiguresError(f"{path} holds no searches: measure again or remove it") from error


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())

"""Make the tables of docs/benchmarks*.md and docs/coverage.md, and the plots, from docs/benchmarks/.

    python -m benchmarks.report
    python -m benchmarks.report build/networks.json --details build/report

With --details, each FILE becomes a page of its own in that folder: all figures, and plots of the curves
beside FILE.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.coverage import page
from benchmarks.coverage.tried import TRIED
from benchmarks.report import details, summary
from benchmarks.results import figures
from benchmarks.results.curves import CURVES
from benchmarks.results.figures import FiguresError

FIGURES = Path("docs/benchmarks")
DOCUMENTS = (
    Path("docs/benchmarks.md"),
    Path("docs/benchmarks-models.md"),
    Path("docs/benchmarks-service.md"),
    Path("docs/benchmarks-runs.md"),
)
COVERAGE = Path("docs/coverage.md")
PLOTS = Path("docs/plots")


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 when a file can't be read, or the document has no place for a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "files", type=Path, nargs="*", metavar="FILE", help="figures [docs/benchmarks/*.json]"
    )
    parser.add_argument("--details", type=Path, metavar="FOLDER", help="write one page for each file there")
    parser.add_argument(
        "--document", type=Path, action="append", help="may be repeated [docs/benchmarks.md and its pages]"
    )
    parser.add_argument("--coverage", type=Path, default=COVERAGE, metavar="DOCUMENT")
    parser.add_argument("--plots", type=Path, default=PLOTS, metavar="FOLDER")
    args = parser.parse_args(argv)
    files = args.files or sorted(FIGURES.glob("*.json"))
    try:
        if args.details is not None:
            for file in files:
                details.write(file, args.details)
            return 0
        documents = {document: document.read_text() for document in args.document or DOCUMENTS}
        tables = summary.tables({file.stem: figures.read(file) for file in files})
        for document, text in fill(documents, tables).items():
            document.write_text(text)
        for file in files:
            if CURVES.path(file).exists():
                details.draw_curves(file, args.plots)
            if TRIED.path(file).exists():
                args.coverage.write_text(coverage(args.coverage.read_text(), file))
    except (FiguresError, OSError) as error:
        print(f"benchmarks.report: {error}", file=sys.stderr)
        return 1
    return 0


def fill(documents: Mapping[Path, str], tables: Mapping[str, str]) -> dict[Path, str]:
    """Return the documents with each table in the one that has its section. Raises FiguresError."""
    filled = dict(documents)
    for name, content in tables.items():
        places = [document for document, text in filled.items() if f"<!-- begin {name} -->" in text]
        if len(places) != 1:
            raise FiguresError(f"{len(places)} documents have <!-- begin {name} -->: write it into one")
        filled[places[0]] = replace_section(filled[places[0]], name, content)
    return filled


def coverage(document: str, file: Path) -> str:
    """Return the document about operators with the tables of a file of figures."""
    for name, table in page.sections(figures.read(file), TRIED.read(file)).items():
        document = replace_section(document, name, table)
    return document


def replace_section(document: str, name: str, content: str) -> str:
    """Return the document with `content` between the section's marks. Raises FiguresError unless both are
    there once."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"({re.escape(begin)}\n).*?({re.escape(end)})", re.DOTALL)
    replaced, count = pattern.subn(lambda found: f"{found[1]}\n{content}\n\n{found[2]}", document)
    if count != 1:
        raise FiguresError(f"the document has {count} sections between {begin} and {end}: write one")
    return replaced


if __name__ == "__main__":
    sys.exit(main())

"""Draw the plots of the documents from docs/benchmarks/, or a page for each file of figures.

    python -m benchmarks.report
    python -m benchmarks.report build/networks.json --details build/report

With --details, each FILE becomes a page in that folder, with all figures and plots of the curves beside FILE.
`make docs` makes the tables of all files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import details
from benchmarks.results import figures
from benchmarks.results.curves import CURVES
from benchmarks.results.figures import FiguresError

FIGURES = Path("docs/benchmarks")
PLOTS = Path("docs/plots")


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if a file can't be read or a plot can't be written."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "files", type=Path, nargs="*", metavar="FILE", help="figures [docs/benchmarks/*.json]"
    )
    parser.add_argument("--details", type=Path, metavar="FOLDER", help="write one page for each file there")
    parser.add_argument("--plots", type=Path, default=PLOTS, metavar="FOLDER")
    args = parser.parse_args(argv)
    files = args.files or sorted(FIGURES.glob("*.json"))
    try:
        if args.details is not None:
            for file in files:
                details.write(file, args.details)
            return 0
        details.draw_peers([figures.read(file) for file in files], args.plots)
        for file in files:
            if CURVES.path(file).exists():
                details.draw_curves(file, args.plots)
    except (FiguresError, OSError) as error:
        print(f"benchmarks.report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One page for a file of figures: all of them as a table, and plots of the records beside the file.

Also the plots of the documents.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.report import summary
from benchmarks.report.markdown import table
from benchmarks.results import figures
from benchmarks.results.curves import CURVES
from benchmarks.results.figures import Results
from benchmarks.results.random_programs import RANDOM_PROGRAMS
from benchmarks.results.searches import SEARCHES


def write(file: Path, folder: Path) -> None:
    """Write NAME.md and its plots into `folder`. Raises FiguresError, OSError."""
    page = markdown(figures.read(file))
    folder.mkdir(parents=True, exist_ok=True)
    for name in [*draw_curves(file, folder), *_draw_searches(file, folder)]:
        page += f"\n![{name.stem}]({name.name})\n"
    (folder / f"{file.stem}.md").write_text(f"# {file.stem}\n\n{page}")


def markdown(results: Results) -> str:
    """Return a description of the run, and a table of all figures."""
    commit = f" at commit {results.commit}" if results.commit else ""
    source = f"Measured {results.date}{commit} with `{results.command}` on {results.machine}."
    return f"{source}\n\n{table(figures.HEADERS, map(figures.cells, results.figures))}\n"


def draw_peers(files: Iterable[Results], folder: Path) -> Path:
    """Draw the latencies of other runtimes relative to ours in peers.svg; return the plot."""
    from benchmarks.report import plots  # imported here, because it is slow

    folder.mkdir(parents=True, exist_ok=True)
    plot = folder / "peers.svg"
    plot.write_bytes(plots.draw_peers(summary.peers(files)))
    return plot


def draw_curves(file: Path, folder: Path) -> list[Path]:
    """Draw the tuning curve of each network beside `file`; return the plots."""
    from benchmarks.report import plots  # imported here, because it is slow

    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for curve in CURVES.read(file):
        made.append(folder / f"{file.stem}-{curve.network}.svg")
        made[-1].write_bytes(plots.draw_curve(curve))
    return made


def _draw_searches(file: Path, folder: Path) -> list[Path]:
    """Draw the random programs and the searches beside `file`; return the plots."""
    from benchmarks.report import plots

    images = {}
    if programs := RANDOM_PROGRAMS.read(file):
        images["random"] = plots.draw_random_programs(programs)
    if searches := [search for search in SEARCHES.read(file) if search.points]:
        images["seconds"] = plots.draw_searches_by_seconds(searches)
        images["trials"] = plots.draw_searches_by_trials(searches)
    made = []
    for name, image in images.items():
        made.append(folder / f"{file.stem}-{name}.svg")
        made[-1].write_bytes(image)
    return made

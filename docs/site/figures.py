"""Pages of the site: every figure of docs/benchmarks, and the coverage of every ONNX operator."""

from __future__ import annotations

from pathlib import Path

from benchmarks.coverage import page
from benchmarks.coverage.tried import TRIED, TYPED
from benchmarks.report import summary
from benchmarks.results import figures

FIGURES = Path(__file__).parents[1] / "benchmarks"
COVERAGE = FIGURES / "coverage.json"
COVERAGE_TYPES = FIGURES / "coverage_types.json"
# The heading of each table of benchmarks.report.summary, and what its columns need explained.
_TABLES = {
    "tuned": (
        "Tuned networks",
        "`tunefarm tune` on an empty data folder: at most 1,000 trials and five minutes. The columns that "
        "begin with *of* give our latency over that of the peer: below 1, ours is faster.",
    ),
    "compiled": (
        "Networks without trials",
        "`tunefarm compile` on an empty database, then with one trial for each subgraph.",
    ),
    "layers": (
        "Layers that nothing was fitted to",
        "MetaSchedule's latency over ours after equal trials: above 1, ours is faster.",
    ),
    "equal trials": ("Networks after equal trials of MetaSchedule", ""),
    "limits": (
        "Distance from the machine's limits",
        "A subgraph's limit is the time of its operations at the calibrated peak, or of its operands at the "
        "memory's bandwidth.",
    ),
    "element types": ("Element types", ""),
    "sizes": ("Several sizes of one model", ""),
    "zoo": ("The zoo", ""),
    "processes": ("Servers and schedulers", ""),
    "soak": ("Twelve simulated hours under faults", ""),
    "deployment": ("Deployment", "Sizes, loading, and calls from Python, C and torch.compile."),
    "others": ("Other benchmarks", ""),
    "missed": ("Missed aims", ""),
    "runs": ("Runs", "The date, the commit and the command of every file."),
}
_COVERAGE = {
    "figures": "Totals",
    "operators": "Operators",
    "left out": "Operators outside the aim: text, sequences, optional values, random numbers, training",
    "not right": "Cases that are refused or wrong",
}


def pages() -> dict[str, str]:
    """Return the pages by their paths. Raises FiguresError if a file can't be read."""
    return {"reference/figures.md": _figures(), "reference/coverage.md": _coverage()}


def _figures() -> str:
    tables = summary.tables({file.stem: figures.read(file) for file in sorted(FIGURES.glob("*.json"))})
    lines = ["# All figures", "", "How they are measured: [benchmarks](../benchmarks.md).", ""]
    for name, (heading, text) in _TABLES.items():
        lines += [f"## {heading}", "", *([text, ""] if text else []), *_filterable(tables[name])]
    return "\n".join(lines)


def _coverage() -> str:
    sections = page.sections(figures.read(COVERAGE), TRIED.read(COVERAGE))
    lines = [
        "# ONNX operators",
        "",
        "ONNX's own node tests, by operator: `python -m benchmarks.coverage`. The columns that begin with "
        "*TVM* are of TVM's own importer. [Models](../models.md#onnx) says what can't be imported, and why.",
        "",
    ]
    for name, heading in _COVERAGE.items():
        lines += [f"## {heading}", "", *_filterable(sections[name])]
    lines += [
        "## Element types",
        "",
        "Every operator with every element type that ONNX allows: `python -m benchmarks.coverage --types`. "
        "An empty cell isn't in ONNX. *Unknown* means that nothing here computes a result to compare with.",
        "",
        *_filterable(page.types_table(TYPED.read(COVERAGE_TYPES))),
    ]
    return "\n".join(lines)


def _filterable(table: str) -> list[str]:
    """Return a table that docs/assets/filter.js gives a field to filter its rows by."""
    return ['<div class="filterable" markdown>', "", table, "", "</div>", ""]

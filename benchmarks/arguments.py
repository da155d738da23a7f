"""Command-line arguments that several benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.suite import OPERATORS
from worker.settings import usable_cores


def positive(text: str) -> int:
    """Parse a whole number above zero. Raises ValueError."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def results_file(text: str) -> Path:
    """Parse the file for figures. Raises ArgumentTypeError if its folder is missing, before anything is
    measured."""
    file = Path(text)
    if not file.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {file.parent}")
    return file


def command_parser(name: str, description: str, quick: str | None = None) -> argparse.ArgumentParser:
    """Return a parser with --json and, if `quick` describes it, --quick.

    `name` is the module's; the help shows the first paragraph of `description`.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description.split("\n\n")[0])
    parser.add_argument(
        "--json", type=results_file, required=True, metavar="FILE", help="where the figures go"
    )
    if quick is not None:
        parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def add_operator(parser: argparse.ArgumentParser) -> None:
    """Add --operator, which may be repeated."""
    parser.add_argument(
        "--operator", action="append", choices=list(OPERATORS), dest="operators", help="only this one"
    )


def suite_parser(name: str, description: str, quick: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser for a benchmark on the suite's operators; --quick runs only `quick`."""
    parser = command_parser(name, description, f"{', '.join(quick)} only, in less than ten minutes")
    add_operator(parser)
    parser.add_argument("--threads", type=positive, default=usable_cores(), help="for everyone [all cores]")
    parser.add_argument("--seed", type=int, default=0, help="of everything that both engines draw [0]")
    return parser


def engines_parser(name: str, description: str, quick: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser for a benchmark that times programs of both engines in turns."""
    parser = suite_parser(name, description, quick)
    parser.add_argument("--rounds", type=positive, help="of interleaved finals [10, quick 5]")
    return parser

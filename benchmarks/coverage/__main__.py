"""Count ONNX's node tests that are right, refused, wrong or crash, with our importer and TVM's.

Every case is compiled without schedules, and runs in a separate process. Its outputs are compared with the
tolerances of ONNX's own test runner. Inputs such as shapes and axes are constants, as in exported models.
With `--types`, every operator is tried with every element type that ONNX allows instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.arguments import command_parser
from benchmarks.coverage import cases, page, typed
from benchmarks.coverage.importers import OURS, TVM_FRONTEND_OPS, Attempts
from benchmarks.coverage.tried import TRIED, TYPED, Tried
from benchmarks.results.output import Output

NAME = "benchmarks.coverage"
QUICK_STEP = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = command_parser(NAME, __doc__, f"every {QUICK_STEP}th case, in less than five minutes")
    parser.add_argument("--operator", action="append", dest="operators", help="only cases of this one")
    parser.add_argument("--types", action="store_true", help="every operator with every element type")
    args = parser.parse_args(argv)
    output = Output(NAME, argv, args.json, threads=2)
    chosen = cases.every(cases.load(), QUICK_STEP if args.quick else 1)
    if args.types:
        return _try_types(typed.typed_cells(chosen, args.operators or ()), args.json, output)
    chosen = [case for case in chosen if not args.operators or case.operator in args.operators]
    tried = []
    with Attempts(OURS) as ours, Attempts(TVM_FRONTEND_OPS) as tvms, ThreadPoolExecutor(2) as at_once:
        for number, case in enumerate(chosen, start=1):
            answers = at_once.map(lambda attempts, case=case: attempts.attempt(case), (ours, tvms))
            tried.append(Tried(case.name, case.operator, case.left_out, *answers))
            if number % 100 == 0:
                output.say(f"{number} of {len(chosen)} cases")
    TRIED.write(tried, args.json)
    output.finish(page.figures_of(tried))
    return 0


def _try_types(cells: Iterable[typed.Cell], file: Path, output: Output) -> int:
    answers = []
    with Attempts(OURS) as ours:
        for number, cell in enumerate(cells, start=1):
            answers.append(typed.attempt(cell, ours))
            if number % 100 == 0:
                output.say(f"{number} cells")
    TYPED.write(answers, file)
    output.finish(page.figures_of_types(answers))
    return 0


if __name__ == "__main__":
    sys.exit(main())

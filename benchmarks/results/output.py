"""Output of a benchmark's command: figures into a file, progress and a table to the terminal."""

from __future__ import annotations

import datetime
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.results import figures, machine
from benchmarks.results.figures import Figure, Results
from system.command import CommandError
from tunefarm.client.client import ClientError

WIDTH = 180  # the table's width where output is no terminal


class Output:
    """Writes figures with date, machine, command and commit; each `write` replaces the file."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str] | None,
        file: Path,
        threads: int,
        without: Sequence[str] = (),
    ) -> None:
        """Record the date and the machine's load. Create it before anything is measured.

        `name` is the benchmark's module, `argv` the arguments of its `main`, None for the process's own;
        `without` are the instruction sets given up.
        """
        self.console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
        self.file = file
        self._name = name
        self._command = shlex.join(["python", "-m", self._name, *(sys.argv[1:] if argv is None else argv)])
        self._date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._where = machine.describe(threads, without)
        self._commit = machine.commit()
        self._instruction_set = machine.instruction_set(without)

    def add(self, device: str) -> None:
        """Add another device to the description of the machine."""
        self._where += f"; {device}"

    def write(self, found: Sequence[Figure]) -> None:
        """Raises OSError."""
        where, command = self._where, self._command
        results = Results(tuple(found), where, self._date, command, self._commit, self._instruction_set)
        results.write(self.file)

    def show(self, found: Sequence[Figure]) -> None:
        self.console.print(figures.table(found))

    def finish(self, found: Sequence[Figure]) -> None:
        """Write and show all figures. Raises OSError."""
        self.write(found)
        self.show(found)

    def measure_each(self, names: Iterable[str], measure: Callable[[str, Path], Sequence[Figure]]) -> int:
        """Measure each name in turn, with an empty folder; return the exit code, 1 when one could not be
        measured. `measure` returns all figures so far, which are written each time."""
        found: Sequence[Figure] = []
        try:
            for name in names:
                with tempfile.TemporaryDirectory(prefix="tunefarm-benchmark-") as folder:
                    found = measure(name, Path(folder))
                self.write(found)
        except (CommandError, ClientError, OSError, RuntimeError) as error:
            self.fail(error)
            return 1
        self.show(found)
        return 0

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def fail(self, why: Exception | str) -> None:
        """Print why something could not be measured to standard error."""
        print(f"{self._name}: {why}", file=sys.stderr)

"""Lists the benchmarks and how to run them."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

COMMANDS = {
    "benchmarks.networks --quick --json FILE": "ResNet-18 and MobileNet-V2 tuned with 300 trials, in turns "
    "with ONNX Runtime, OpenVINO and TVM untuned; under 10 minutes",
    "benchmarks.networks --json FILE": "the same and ResNet-50, and how fast MetaSchedule makes trials",
    "benchmarks.networks --compile --json FILE": "six networks as tunefarm compile makes them, without "
    "trials and then with one for each subgraph, in turns with both; about half an hour",
    "benchmarks.networks --device-class avx2 --json FILE": "any of these where everyone gives up AVX-512; "
    "sse42: everything from AVX on",
    "benchmarks.space --quick --json FILE": "our space of programs against MetaSchedule's, for three "
    "operators: random programs, the best of both, programs sampled a second; under 10 minutes",
    "benchmarks.space --json FILE": "the same for the whole suite; about an hour",
    "benchmarks.operators --quick --json FILE": "our search against MetaSchedule's, for three operators: "
    "seconds until as good, quality after as many trials, trials and predictions a second, and the matrix "
    "product against numpy; under 10 minutes",
    "benchmarks.operators --json FILE": "the same for the paper's twelve operators; about an hour and a half",
    "benchmarks.operators --ablation --json FILE": "our search without a part of it at a time; about an hour",
    "benchmarks.operators --settled --json FILE": "our search after 64 trials against itself after 1,000; "
    "about half an hour",
    "benchmarks.operators --unseen --device-class CLASS --json FILE": "our search against MetaSchedule's on "
    "two dozen layers that the estimate was not fitted to, on this machine as it is or without some "
    "of its features (avx2, sse42); about 40 minutes",
    "benchmarks.fit PROGRAMS --json FILE": "fits the analytic estimate's shape factors to measured programs: "
    "how well they do on operators and device classes that were left out",
    "benchmarks.fit PROGRAMS --measure --json FILE": "the same, after it measured programs on each device "
    "class; about a quarter of an hour",
    "benchmarks.allocation SEARCHES --json FILE": "what the allocator gains over equal shares, replayed on "
    "the searches that benchmarks.operators keeps; seconds",
    "benchmarks.models --json FILE": "latencies of programs predicted unseen: by our cost model, by TVM's "
    "and by our estimate alone; about ten minutes",
    "benchmarks.scale --quick --json FILE": "one server on PostgreSQL, with 100 simulated workers and with "
    "one: trials stored a second, how soon leases are answered; about five minutes",
    "benchmarks.scale --json FILE": "the same with 1,000 workers",
    "benchmarks.local_workers --quick --json FILE": "two workers on a core each against one, real ones: "
    "trials a second, and what server and scheduler take; under 10 minutes",
    "benchmarks.local_workers --json FILE": "the same with more and longer runs",
    "benchmarks.faults --quick --json FILE": "processes killed, networks cut, disks filled while a job runs: "
    "trials lost, counted twice, seconds to recovery",
    "benchmarks.fuzz --quick --json FILE": "messages that make no sense, to server and importer: what is "
    "answered wrongly, ends or grows; under two minutes",
    "benchmarks.fuzz --json FILE": "the same with 100,000 messages; under 10 minutes",
    "benchmarks.report FILE...": "rewrites the tables and plots of docs/benchmarks.md from such files",
}


def main() -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("run", no_wrap=True)
    table.add_column("and it measures")
    for command, what in COMMANDS.items():
        table.add_row(f"python -m {command}", what)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(table, highlight=False)
    console.print("\nNothing else should run on the machine meanwhile.")


if __name__ == "__main__":
    main()

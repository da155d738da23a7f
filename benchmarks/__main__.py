"""List the benchmarks and how to run them."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

COMMANDS = {
    "benchmarks.networks --quick --json FILE": (
        "ResNet-18 and MobileNet-V2 tuned with 300 trials, compared with ONNX Runtime, OpenVINO and untuned "
        "TVM; under 10 minutes"
    ),
    "benchmarks.networks --json FILE": "the same and ResNet-50, and MetaSchedule's trials a second",
    "benchmarks.networks --compile --json FILE": (
        "six networks compiled without trials and then with one for each subgraph, compared with ONNX "
        "Runtime and OpenVINO; about half an hour"
    ),
    "benchmarks.networks --disturbed --json FILE": (
        "ten networks tuned for half a minute beside a busy process: published latencies and what users' "
        "processes see; about half an hour, with --quick under 10 minutes"
    ),
    "benchmarks.networks --device-class avx2 --json FILE": (
        "any of these without AVX-512 for everyone; sse42: without AVX"
    ),
    "benchmarks.space --quick --json FILE": (
        "our space of programs and MetaSchedule's, for three operators: random programs, the best of each, "
        "programs sampled a second; under 10 minutes"
    ),
    "benchmarks.space --json FILE": "the same for the whole suite; about an hour",
    "benchmarks.operators --quick --json FILE": (
        "our search and MetaSchedule's, for three operators: seconds until as good, quality after as many "
        "trials, trials and predictions a second, libraries; under 10 minutes"
    ),
    "benchmarks.operators --json FILE": (
        "the same for the paper's twelve operators; about an hour and a half"
    ),
    "benchmarks.operators --ablation --json FILE": ("our search without one part at a time; about an hour"),
    "benchmarks.operators --settled --json FILE": (
        "our search after 64 trials and after 1,000; about half an hour"
    ),
    "benchmarks.operators --unseen --device-class avx2 --json FILE": (
        "our search and MetaSchedule's on two dozen layers that the estimate was not fitted to, on one "
        "device class (native, avx512, avx2, sse42); about 40 minutes"
    ),
    "benchmarks.fit PROGRAMS --json FILE": (
        "fits the analytic estimate's shape factors to measured programs, and tests them on operators and "
        "device classes that were left out"
    ),
    "benchmarks.fit PROGRAMS --measure --json FILE": (
        "the same, after measuring programs on each device class; about a quarter of an hour"
    ),
    "benchmarks.recording DATABASE... --json FILE": (
        "keeps what the trials of finished jobs measured, for the next two; seconds"
    ),
    "benchmarks.allocation RECORDINGS --json FILE": (
        "the allocator, equal shares, round-robin and MetaSchedule's formula, replayed on recorded networks; "
        "a minute"
    ),
    "benchmarks.crossover --json FILE": (
        "evolution with several shares of crossover and with mutation alone, by the estimate; ten minutes"
    ),
    "benchmarks.time_left RECORDINGS --json FILE": (
        "how long recorded jobs were said to take, and took; seconds"
    ),
    "benchmarks.gpu --quick --json FILE": (
        "on a GPU: our search, MetaSchedule's and PyTorch for three operators, products on tensor cores "
        "beside the measured peak, and MobileNet-V2"
    ),
    "benchmarks.gpu --seconds 540 --json FILE": (
        "the same in so many seconds: networks in float32, TF32 and float16 and products first, each under "
        "a limit of its own, and MetaSchedule last"
    ),
    "benchmarks.gpu --json FILE": "the same for the suite, products up to 8192 and four networks; hours",
    "benchmarks.models --json FILE": (
        "how well our cost model, TVM's and our estimate alone predict programs that they have not seen; "
        "about ten minutes"
    ),
    "benchmarks.models --recorded PROGRAMS --json FILE": (
        "the same of programs that benchmarks.fit measured; a minute"
    ),
    "benchmarks.learning --database DATABASE --json FILE": (
        "how well our cost model predicts programs that jobs measured: as the paper tests its model, of "
        "unseen workloads and networks, and in the order of the trials; a minute"
    ),
    "benchmarks.scale --servers 2 --schedulers 2 --json FILE": (
        "trials a second of one and two servers with one and two schedulers on one PostgreSQL, and what "
        "limits them; about a quarter of an hour"
    ),
    "benchmarks.scale --quick --json FILE": (
        "one server on PostgreSQL with 100 simulated workers and with one: trials stored a second, latency "
        "of leases; about five minutes"
    ),
    "benchmarks.scale --json FILE": "the same with 1,000 workers",
    "benchmarks.lookup --quick --json FILE": (
        "one server, look-ups of best schedules a second among 20,000 records, on PostgreSQL and SQLite, and "
        "pages over 600 queued jobs; about two minutes"
    ),
    "benchmarks.lookup --json FILE": "the same with a million records and 10,000 queued jobs",
    "benchmarks.local_workers --quick --json FILE": (
        "two real workers on a core each and one: trials a second, CPU of server and scheduler; under 10 "
        "minutes"
    ),
    "benchmarks.local_workers --json FILE": "the same with more and longer runs",
    "benchmarks.coverage --quick --json FILE": (
        "a tenth of ONNX's own node tests: right, refused, wrong, crashed, beside TVM's importer; under five "
        "minutes"
    ),
    "benchmarks.coverage --json FILE": "the same for all of them; about a quarter of an hour",
    "benchmarks.coverage --types --json FILE": (
        "every ONNX operator with every element type that ONNX allows; about a quarter of an hour"
    ),
    "benchmarks.decoders --quick --json FILE": (
        "Llama-like decoders of 6 million parameters that keep their cache, in float32 and with 4 bits: "
        "prefill, decode and memory beside ONNX Runtime, OpenVINO and llama.cpp; under ten minutes"
    ),
    "benchmarks.decoders --json FILE": (
        "the same with 170 million parameters, a GPT-2 beside them, and 1,000 trials; hours"
    ),
    "benchmarks.zoo --json FILE": (
        "twenty small networks of the kinds that people bring: right, and how much of their time is tuned; "
        "about a quarter of an hour"
    ),
    "benchmarks.runtime --quick --json FILE": "the next with a tiny ResNet, to try it out; two minutes",
    "benchmarks.runtime --json FILE": (
        "what deploying costs: installed size, time to load, overhead of a call from Python and C, "
        "torch.compile beside the artifact and inductor; about ten minutes"
    ),
    "benchmarks.element_types --json FILE": (
        "three networks in float32, bytes, float16 and bfloat16, compared with ONNX Runtime on the same "
        "files; about half an hour"
    ),
    "benchmarks.sizes --quick --json FILE": (
        "two small networks tuned in three sizes together, compared with each size tuned alone with as many "
        "trials; about ten minutes"
    ),
    "benchmarks.faults --quick --json FILE": (
        "processes killed, networks cut, disks filled while a job runs: trials lost, counted twice, seconds "
        "to recovery"
    ),
    "benchmarks.soak --quick --json FILE": (
        "two servers, two schedulers and four workers under faults for two hours in compressed time: what is "
        "lost, doubled or wrong; about two minutes"
    ),
    "benchmarks.soak --json FILE": (
        "the same for twelve hours, and whether memory, threads, descriptors, rows and disk level off; about "
        "nine minutes"
    ),
    "benchmarks.report": "draws the plots of the documents from docs/benchmarks/*.json",
    "benchmarks.report FILE... --details FOLDER": ("writes a page with all figures and plots of each file"),
}


def main() -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("run", no_wrap=True)
    table.add_column("measures")
    for command, description in COMMANDS.items():
        table.add_row(f"python -m {command}", description)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(table, highlight=False)
    console.print("\nNothing else should run on the machine meanwhile.")


if __name__ == "__main__":
    main()

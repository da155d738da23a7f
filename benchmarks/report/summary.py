"""The tables of the documentation site, with the most important figures of each file."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from benchmarks.report.markdown import table
from benchmarks.results.figures import Figure, Results, at_least, number
from benchmarks.results.machine import INSTRUCTION_SETS
from benchmarks.results.metrics import (
    AFTER_BUSY,
    ALL_SUBGRAPHS,
    BANDWIDTH,
    BATCH,
    BESIDE_BUSY,
    CORES_USED,
    FASTEST_PEER,
    GROWTH,
    LARGEST_DIFFERENCE,
    LATENCY,
    LOWEST_SPEED_UP,
    MACHINE_LIMIT,
    MEAN_LEVEL,
    ONE_TRIAL,
    PEAK,
    RIGHT_NETWORKS,
    SPEED_UP,
    TIME_TO_ARTIFACT,
    TOTAL_TIME,
    TRIALS,
    TRIALS_A_SECOND,
    TRIALS_STORED,
    TUNED_SHARE,
    TUNED_TOGETHER,
    TUNING_SPEED_UP,
    WITHOUT_TRIALS,
    after_trials,
)

# The figures of one subject, by Figure.key: metric, peer, condition.
ByKey: TypeAlias = Mapping[tuple[str, str, str], Figure]

# Names of device classes in figures -> what the document calls them.
CLASSES = {"avx512": "AVX-512", "avx2": "AVX2", "sse42": "SSE4.2"}
COUNTS = (1, 8, 16, 64)
ONNXRUNTIME, OPENVINO, METASCHEDULE, TVM = "ONNX Runtime", "OpenVINO", "MetaSchedule", "TVM untuned"
OPERATORS = "geometric mean of 12 operators:"
DENSE = "geometric mean of 3 operators:"
EQUAL = "median of all networks: trials with equal shares relative to"
HALF = "to reach the latency after 50% of all trials"
BUSY = "1000 workers, 2222 trials offered a second"
# The shown figures of each other benchmark, by file.
HEADLINES: Mapping[str, tuple[str, ...]] = {
    "operators_64": (
        f"{OPERATORS} speed-up over MetaSchedule, after 8 trials",
        f"{OPERATORS} speed-up over MetaSchedule, after 64 trials",
        "lowest speed-up over MetaSchedule, after 64 trials",
        f"{OPERATORS} tuning speed-up over MetaSchedule, time to reach its 64-trial result",
        f"{OPERATORS} trials a second relative to MetaSchedule",
        f"{OPERATORS} candidates scored a second on one core",
    ),
    "operators_dense": (
        f"{DENSE} speed-up over MetaSchedule, after 256 trials",
        f"{DENSE} tuning speed-up over MetaSchedule, time to reach its 256-trial result",
    ),
    "settled": (f"{OPERATORS} latency after 64 trials relative to 1000 trials",),
    "space": (f"{OPERATORS} median over best latency relative to MetaSchedule, of 64 random programs",),
    "models": (
        "all operators: pairs in the right order, of programs not trained on",
        "all operators: recall of the 30 fastest, of programs not trained on",
    ),
    "learning": tuple(
        f"avx2, one core: {metric}, a random fifth held out"
        for metric in ("R2 of throughput", "pairs in the right order", "recall of the 30 fastest")
    ),
    "allocation": (f"{EQUAL} the allocator, {HALF}", f"{EQUAL} MetaSchedule's formula, {HALF}"),
    "crossover": tuple(
        f"geometric mean of {layers}: estimated latency of the best program relative to mutation alone, "
        f"{share}% of each generation by crossover"
        for layers in ("28 layers", "4 layers by Winograd")
        for share in (5, 10, 20, 40)
    ),
    "time_left": ("all networks: largest error of the time left, after a third of the job or later",),
    "scale": (
        f"trials stored, {BUSY}",
        f"time to lease, p99, {BUSY}",
        "time to lease, p99, 1000 workers, 1093 trials stored a second",
    ),
    **{
        run: (
            f"look-ups, {database}, 1000000 records",
            f"look-up, p99, {database}, 1000000 records",
            f"look-ups answered by 304, {database}, 1000000 records",
            f"look-up of 30 workloads, p99, {database}, 1000000 records",
            f"submitting a job, p99, {database}, 10000 jobs",
            f"the first page of jobs, p99, {database}, 10000 jobs",
            f"time until the page of the job with 10000 trials is interactive, {database}, 10000 jobs",
            f"data received by the page of the job with 10000 trials, {database}, 10000 jobs",
        )
        for run, database in (("lookup", "PostgreSQL"), ("lookup_sqlite", "SQLite"))
    },
    "disturbed": tuple(
        f"median difference of published latencies from a user's process, {when}"
        for when in (BESIDE_BUSY, AFTER_BUSY)
    ),
    "local_workers": ("two workers: trials a second relative to one worker",),
    "faults": (
        "all faults: runs",
        "all faults: trials lost",
        "all faults: trials counted twice",
        "all faults: wrong schedules published",
    ),
    "soak": (
        "simulated hours",
        "faults",
        "jobs that ended well",
        "trials with a result",
        "mistakes (lost, doubled or wrong)",
    ),
    "fuzz": ("messages sent", "HTTP: responses 5xx", "server: times it ended", "ONNX import: crashes"),
}


def tables(files: Mapping[str, Results]) -> dict[str, str]:
    """Return the Markdown of each section, given results by file name."""
    files = dict(sorted(files.items()))
    return {
        "layers": layers(files.values()),
        "compiled": compiled(files.values()),
        "tuned": tuned(files.values()),
        "equal trials": equal_trials(files.values()),
        "limits": limits(files.values()),
        "element types": element_types(files.values()),
        "sizes": sizes(files.values()),
        "zoo": zoo(files.values()),
        "processes": processes(files.values()),
        "soak": levels(files.get("soak")),
        "deployment": deployment(files.get("runtime")),
        "others": others(files),
        "missed": missed(files),
        "runs": runs(files),
    }


def layers(files: Iterable[Results]) -> str:
    """Return a row for each device class, with means over its layers.

    A class's layers may be in several files.
    """
    ratios: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    times: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for results in sorted(files, key=lambda each: each.date):
        for figure in results.figures:
            if not figure.device_class or figure.peer != METASCHEDULE:
                continue
            name = CLASSES.get(figure.device_class, results.instruction_set)
            if figure.metric == SPEED_UP and figure.count is None:
                ratios[name, figure.condition][figure.subject] = figure.value
            elif figure.metric == TUNING_SPEED_UP and figure.count is not None:
                times[name].append((figure.count, figure.value))
    conditions = [after_trials(count) for count in COUNTS]
    rows = []
    for name in INSTRUCTION_SETS.values():
        last = ratios[name, conditions[-1]]
        if not last:
            if name in CLASSES.values():
                rows.append([name, "not measured", *[""] * (len(conditions) + 2)])
            continue
        means = [
            statistics.geometric_mean(ratios[name, condition].values())
            if ratios[name, condition]
            else math.nan
            for condition in conditions
        ]
        worst = min(last, key=lambda layer: last[layer])
        sooner = math.exp(sum(n * math.log(x) for n, x in times[name]) / sum(n for n, _ in times[name]))
        lowest = f"{number(last[worst])} ({worst})"
        rows.append([name, f"{len(last)}", *map(number, means), lowest, number(sooner)])
    headers = ["class", "layers", *conditions, f"lowest {conditions[-1]}", "tuning speed-up"]
    return table(headers, rows)


def compiled(files: Iterable[Results]) -> str:
    """Return a row for each network that was compiled without trials on a device class, and the mean of each
    class."""
    rows = []
    for name, label, found in _networks(files, lambda found: _has(found, condition=WITHOUT_TRIALS)):
        ratios = [
            _value(found.get((LATENCY, peer, condition)))
            for condition in (WITHOUT_TRIALS, ONE_TRIAL)
            for peer in (ONNXRUNTIME, OPENVINO)
        ]
        latency, took = found[LATENCY, "", "tunefarm compile"], found[TIME_TO_ARTIFACT, "", WITHOUT_TRIALS]
        rows.append([name, label, _value(latency), *ratios, _value(took)])
    headers = ["class", "network", "compiled", "of ONNX Runtime", "of OpenVINO", "one trial: of ONNX Runtime"]
    return table([*headers, "one trial: of OpenVINO", "took"], _with_means(rows, range(3, 7)))


def tuned(files: Iterable[Results]) -> str:
    """Return a row for each tuned network on each device class, and the mean of each class."""
    rows = []
    for name, label, found in _networks(_without_metaschedule(files), _is_tuned):
        total = found[TOTAL_TIME, "", ""]
        ratios = [found.get((LATENCY, peer, "")) for peer in (ONNXRUNTIME, OPENVINO, FASTEST_PEER)]
        rows.append(
            [
                name,
                label,
                _value(found.get((PEAK, "", ""))),
                _value(found[LATENCY, "", "tunefarm"]),
                *map(_value, ratios),
                number(1 / found[SPEED_UP, TVM, ""].value),
                f"{_value(found[TRIALS, '', ''])} in {_value(total)}",
            ]
        )
    headers = ["class", "network", "peak", "tuned", "of ONNX Runtime", "of OpenVINO", "of the fastest peer"]
    return table([*headers, "of TVM untuned", "trials"], _with_means(rows, range(4, 8)))


def peers(files: Iterable[Results]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the latency of each other runtime relative to ours, by device class and network."""
    found: defaultdict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for name, label, by_key in _networks(_without_metaschedule(files), _is_tuned):
        found[name][label] = {
            peer: 1 / figure.value
            for (metric, peer, _), figure in by_key.items()
            if metric == LATENCY and peer not in ("", FASTEST_PEER, MACHINE_LIMIT)
        }
    return dict(found)


def equal_trials(files: Iterable[Results]) -> str:
    """Return a row for each network that MetaSchedule also tuned, with as many trials."""
    rows = []
    for name, label, found in _networks(files, lambda found: (LATENCY, METASCHEDULE, "") in found):
        keys = (
            (TRIALS, "", ""),
            (LATENCY, "", "tunefarm"),
            (LATENCY, "", METASCHEDULE),
            (LATENCY, METASCHEDULE, ""),
            (TOTAL_TIME, "", ""),
            (TRIALS_A_SECOND, METASCHEDULE, ""),
        )
        rows.append([name, label, *(_value(found[key]) for key in keys)])
    headers = ["class", "network", "trials", "tuned", "MetaSchedule's", "ratio", "took", "trials a second"]
    return table(headers, rows or [["not measured", *[""] * 7]])


def limits(files: Iterable[Results]) -> str:
    """Return a row for each tuned network whose latency was compared with the machine's limits."""
    whole = (LATENCY, MACHINE_LIMIT, ALL_SUBGRAPHS)
    rows = []
    for name, label, found in _networks(files, lambda found: whole in found):
        farthest = [
            f"`{figure.condition}`: {figure.note}"
            for key, figure in found.items()
            if key[:2] == whole[:2] and key != whole
        ]
        machine = f"{_value(found[PEAK, '', ''])}, {_value(found[BANDWIDTH, '', ''])} from memory"
        rows.append([name, label, _value(found[whole]), machine, "; ".join(farthest[:3])])
    headers = ["class", "network", "latency over limit", "the machine", "farthest above their limits"]
    return table(headers, rows or [["not measured", *[""] * 4]])


def element_types(files: Iterable[Results]) -> str:
    """Return a row for each network in each type on each class. Of several runs, the last one counts."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for results in sorted(files, key=lambda each: each.date):
        found = {(each.subject, each.metric, each.peer, each.condition): each for each in results.figures}
        for figure in results.figures:
            if figure.metric == LARGEST_DIFFERENCE:
                name, label, kind = results.instruction_set, figure.subject, figure.condition
                peers = (None, "float32", ONNXRUNTIME, OPENVINO)
                latencies = [found.get((label, LATENCY, peer, kind)) for peer in peers]
                rows[name, label, kind] = [name, label, kind, *map(_value, latencies), _value(figure)]
    headers = [
        "class",
        "network",
        "type",
        "latency",
        "of float32",
        "of ONNX Runtime",
        "of OpenVINO",
        "largest difference",
    ]
    return table(headers, [*rows.values()] or [["not measured", *[""] * 7]])


def sizes(files: Iterable[Results]) -> str:
    """Return a row for each size that was tuned together with others."""
    rows = []
    for results in files:
        for each in results.figures:
            if each.metric == TUNED_TOGETHER:
                low, high = each.spread or (each.value, each.value)
                span = f"{number(low)} to {number(high)}"
                rows.append([each.subject, number(each.value), span, each.verdict, each.note])
    headers = ["size", "together over alone", "of blocks", "aim", "latencies"]
    return table(headers, rows or [["not measured", *[""] * 4]])


def zoo(files: Iterable[Results]) -> str:
    """Return a row for each network of the zoo, after two rows for all of them.

    The networks may be in several files.
    """
    networks: list[Figure] = []
    right = count = 0
    problems: list[str] = []
    for results in files:
        for each in results.figures:
            if each.metric == RIGHT_NETWORKS:
                right, count = right + int(each.value), count + (each.count or 0)
                problems += [each.note] if each.note else []
            elif each.metric == TUNED_SHARE:
                networks.append(each)
    rows = []
    if networks:
        mean, aim = statistics.mean(each.value for each in networks), at_least(95)
        verdict = f"{aim.words}: {'reached' if aim.kept(mean) else 'missed'}"
        rows = [
            ["all: right", f"{right} of {count}", "all", "; ".join(problems)],
            ["all: mean", f"{number(mean)} %", verdict, ""],
        ]
        rows += [[each.subject, _value(each), "", each.note] for each in networks]
    headers = ["network", "time in tuned subgraphs", "aim", "more"]
    return table(headers, rows or [["not measured", "", "", ""]])


def processes(files: Iterable[Results]) -> str:
    """Return a row for each number of servers and schedulers on one database."""
    kinds = ("server", "scheduler", "PostgreSQL", "simulated workers")
    rows = []
    for results in files:
        found = {(each.subject, *each.key): each for each in results.figures}
        for each in results.figures:
            cores = [found.get((each.subject, CORES_USED, "", kind)) for kind in kinds]
            if each.metric == TRIALS_STORED and all(cores):
                rows.append([each.subject, _value(each), *map(_value, cores), each.note])
    used = [f"cores: {name}" for name in ("servers", "schedulers", *kinds[2:])]
    headers = ["processes", "trials", *used, "limit"]
    return table(headers, rows or [["not measured", *[""] * (len(headers) - 1)]])


def levels(soak: Results | None) -> str:
    """Return a row for each series of the soak, with whether it levels off.

    Empty series have no row. Of the database's tables, only the one closest to its bound has a row.
    """
    found = soak.figures if soak is not None else ()
    means = {(each.subject, each.condition): each for each in found if each.metric == MEAN_LEVEL}
    shown = [
        each for each in found if each.metric == GROWTH and means[each.subject, each.condition].value > 0
    ]
    tables = [each for each in shown if each.condition == "rows"]
    watched = [(f"{each.subject}: {each.condition}", each) for each in shown if each not in tables]
    if tables:
        closest = max(tables, key=lambda each: each.value / (each.bound or math.inf))
        label = f"rows of {len(tables)} tables, the one closest to its bound: {closest.subject}"
        watched.append((label, closest))
    cells = [
        [label, _value(means[each.subject, each.condition]), _value(each), each.verdict, each.note]
        for label, each in watched
    ]
    headers = ["watched", "mean", "growth in six hours", "allowed", "more"]
    return table(headers, cells or [["not measured", *[""] * 4]])


def deployment(results: Results | None) -> str:
    """Return a row for each figure of benchmarks.runtime; none without a run."""
    figures = results.figures if results else ()
    rows = [[one.name, _value(one), one.verdict, one.note] for one in figures]
    return table(["figure", "value", "aim", "beside"], rows or [["not measured", "", "", ""]])


def others(files: Mapping[str, Results]) -> str:
    """Return a row for each headline figure of the other benchmarks, if its file and figure exist."""
    rows = []
    for file, names in HEADLINES.items():
        found = {figure.name: figure for figure in files[file].figures} if file in files else {}
        rows += [[file, name, _value(found[name]), found[name].verdict] for name in names if name in found]
    return table(["run", "figure", "value", "aim"], rows)


def missed(files: Mapping[str, Results]) -> str:
    """Return a row for each figure that misses its aim. Figures that differ only in their subject share a
    row."""
    found: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for file, results in files.items():
        for figure in results.figures:
            # Left out, because the lowest of several figures also appears under its own name.
            if figure.reached is False and figure.metric != LOWEST_SPEED_UP:
                value = f"{figure.subject} {_value(figure)}".strip()
                found[file, figure.measured, figure.aim or ""].append(value)
    rows = [[file, what, aim, ", ".join(values)] for (file, what, aim), values in found.items()]
    return table(["run", "figure", "aim", "instead"], rows)


def runs(files: Mapping[str, Results]) -> str:
    """Return a row for each file, with date, commit, instruction sets and command."""
    rows = [
        [
            file,
            results.date[:16].replace("T", " "),
            results.commit or "?",
            results.instruction_set or "unknown",
            f"`{_flags(results)}`",
        ]
        for file, results in files.items()
    ]
    return table(["run", "date", "commit", "instruction sets", "`python -m benchmarks.`..."], rows)


def _networks(files: Iterable[Results], is_wanted: Callable[[ByKey], bool]) -> list[tuple[str, str, ByKey]]:
    """Return (class, network, its figures) of each network whose figures `is_wanted` accepts.

    Of several runs of a network on a class, the last one counts.
    """
    found: dict[tuple[str, str], ByKey] = {}
    for results in sorted(files, key=lambda each: each.date):
        by_subject: defaultdict[str, dict[tuple[str, str, str], Figure]] = defaultdict(dict)
        for figure in results.figures:
            if figure.count is None:
                by_subject[figure.subject][figure.key] = figure
        for label, figures in by_subject.items():
            if results.instruction_set and is_wanted(figures):
                found[results.instruction_set, label] = figures
    order = list(INSTRUCTION_SETS.values())
    measured = sorted(found.items(), key=lambda each: (order.index(each[0][0]), *each[0]))
    return [(name, label, figures) for (name, label), figures in measured]


def _is_tuned(found: ByKey) -> bool:
    return (SPEED_UP, TVM, "") in found


def _has(found: ByKey, condition: str) -> bool:
    """Return whether a ratio of latencies was measured under this condition."""
    return any(key[0] == LATENCY and key[1] and key[2] == condition for key in found)


def _without_metaschedule(files: Iterable[Results]) -> list[Results]:
    """Return the runs without MetaSchedule."""
    of_metaschedule = (LATENCY, METASCHEDULE, "")
    return [each for each in files if not any(one.key == of_metaschedule for one in each.figures)]


def _with_means(rows: Sequence[list[str]], columns: range) -> list[list[str]]:
    """Return the rows of each device class, followed by the geometric means of their ratios at batch 1.
    Classes without rows get a note."""
    result = []
    for name in INSTRUCTION_SETS.values():
        own = [row for row in rows if row[0] == name]
        if not own:
            if name in CLASSES.values():
                result.append([name, "not measured", *[""] * (columns.stop - 1)])
            continue
        single = [row for row in own if BATCH not in row[1]]
        values = [[float(row[column]) for row in single if row[column]] for column in columns]
        means = [number(statistics.geometric_mean(each)) if each else "" for each in values]
        result += [*own, [name, f"mean of {len(single)}", *[""] * (columns.start - 2), *means, ""]]
    return result


def _value(figure: Figure | None) -> str:
    if figure is None:
        return ""
    return f"{number(figure.value)} {figure.unit}".strip().removesuffix(" x")


def _flags(results: Results) -> str:
    command = re.sub(r"^python -m (benchmarks\.)?| --json \S+", "", results.command)
    return re.sub(r"( --(?:layer|network|operator) )\S+(?:\1\S+)+", r"\1...", command)

"""The tables of the documentation site: from each file of figures, those that matter."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.report.markdown import table
from benchmarks.results.figures import Figure, Results, at_least, number

# What a processor shows -> what the document calls it, the largest first.
INSTRUCTION_SETS = {"avx512f": "AVX-512", "avx2": "AVX2", "sse4_2": "SSE4.2"}
CLASSES = {"avx512": "AVX-512", "avx2": "AVX2", "sse42": "SSE4.2"}
TRIALS = (1, 8, 16, 64)
LAYER = re.compile(r"(\S+), (\S+): MetaSchedule's latency relative to ours after (\d+) trials")
LAYERS_TIME = re.compile(
    r"geometric mean of (\d+) operators: (\S+): MetaSchedule's seconds for 64 trials .* as fast"
)
RATIO = "MetaSchedule's latency relative to ours after"
SECONDS = "MetaSchedule's seconds for"
SPACE = "median over best of 64 random programs, relative to MetaSchedule"
PROCESSES = re.compile(r"(\d+) servers, (\d+) schedulers: trials stored")
TYPE = re.compile(r"(\S+): largest difference of (\S+), relative to the largest output")
TOGETHER = "latency tuned together relative to alone"
SHARE = "share of run time in tuned subgraphs, mean"
RIGHT = re.compile(r"networks that are right, of (\d+)")
SHARE_OF = re.compile(r"(\S+): share of run time in tuned subgraphs")
OF_METASCHEDULE = "latency relative to MetaSchedule"
OF_LIMITS = "the machine's limits relative to the subgraphs' latencies"
OF_LIMIT = "latency relative to the machine's limit, "
LEVEL = "growth in the second half"
EQUAL = "all networks, median: trials of equal shares over those of"
TIME_LEFT = "all networks: the time left, told after a third of the job or later: largest error"
# The figures that are shown of each other benchmark, by file.
HEADLINES: Mapping[str, tuple[str, ...]] = {
    "operators_64": (
        f"geometric mean of 12 operators: {RATIO} 8 trials",
        f"geometric mean of 12 operators: {RATIO} 64 trials",
        f"lowest of these: {RATIO} 64 trials",
        f"geometric mean of 12 operators: {SECONDS} 64 trials relative to ours until as fast",
        "geometric mean of 12 operators: trials a second relative to MetaSchedule's",
        "geometric mean of 12 operators: candidates scored a second on one core",
    ),
    "operators_dense": (
        f"geometric mean of 3 operators: {RATIO} 256 trials",
        f"geometric mean of 3 operators: {SECONDS} 256 trials relative to ours until as fast",
    ),
    "settled": ("geometric mean of 12 operators: our latency after 64 trials relative to ours after 1000",),
    "space": (f"geometric mean of 12 operators: {SPACE}",),
    "models": (
        "all operators: pairs in the right order, predicted unseen",
        "all operators: recall of the 30 fastest, predicted unseen",
    ),
    "allocation": (
        f"{EQUAL} the allocator until as fast as with 50% of all trials",
        f"{EQUAL} MetaSchedule's formula until as fast as with 50% of all trials",
    ),
    "time_left": (TIME_LEFT,),
    "scale": (
        "trials stored: 1000 workers, 2222 trials offered a second",
        "leases, p99: 1000 workers, 2222 trials offered a second",
        "leases, p99: 1000 workers, 1047 trials stored a second",
    ),
    **{
        run: (
            f"look-ups: {database}, 1000000 records",
            f"look-ups, p99: {database}, 1000000 records",
            f"look-ups answered 304: {database}, 1000000 records",
            f"30 workloads in a call, p99: {database}, 1000000 records",
            f"submit, p99: {database}, 10000 jobs",
            f"the first page of jobs, p99: {database}, 10000 jobs",
            f"the page of the job with 10000 trials until it is interactive: {database}, 10000 jobs",
            f"the page of the job with 10000 trials, all that is received: {database}, 10000 jobs",
        )
        for run, database in (("lookup", "PostgreSQL"), ("lookup_sqlite", "SQLite"))
    },
    "local_workers": ("two workers' trials a second relative to one's",),
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
        "mistakes: lost, doubled or wrong",
    ),
    "fuzz": ("messages sent", "HTTP: answers 5xx", "server: times it ended", "ONNX import: crashes"),
}


def tables(files: Mapping[str, Results]) -> dict[str, str]:
    """Return the Markdown of each section of the document, made from the results by file name."""
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
        "others": others(files),
        "missed": missed(files),
        "runs": runs(files),
    }


def device_class(results: Results) -> str:
    """Return the largest instruction set that a run on one device class could use, as INSTRUCTION_SETS
    calls it."""
    named = re.findall(r"--device-class[= ](\S+)", results.command)
    if named and named[-1] != "native":
        return CLASSES.get(named[-1], named[-1])
    shown = re.search(r"\(([^;)]*)", results.machine)
    flags = shown[1].split(", ") if shown else []
    return next((name for flag, name in INSTRUCTION_SETS.items() if flag in flags), "unknown")


def layers(files: Iterable[Results]) -> str:
    """Return a row for each device class: means over the layers that were measured on it, in whatever
    files."""
    ratios: defaultdict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    times: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for results in sorted(files, key=lambda each: each.date):
        native = device_class(results)
        for figure in results.figures:
            if found := LAYER.fullmatch(figure.name):
                ratios[CLASSES.get(found[1], native), int(found[3])][found[2]] = figure.value
            elif found := LAYERS_TIME.fullmatch(figure.name):
                times[CLASSES.get(found[2], native)].append((int(found[1]), figure.value))
    rows = []
    for name in INSTRUCTION_SETS.values():
        last = ratios[name, TRIALS[-1]]
        if not last:
            rows.append([name, "not measured", *[""] * (len(TRIALS) + 2)])
            continue
        means = [
            statistics.geometric_mean(ratios[name, n].values()) if ratios[name, n] else math.nan
            for n in TRIALS
        ]
        worst = min(last, key=lambda layer: last[layer])
        seconds = math.exp(sum(n * math.log(x) for n, x in times[name]) / sum(n for n, _ in times[name]))
        rows.append(
            [
                name,
                f"{len(last)}",
                *map(number, means),
                f"{number(last[worst])} ({worst})",
                f"{number(seconds)} x",
            ]
        )
    counts = [f"after {n}" for n in TRIALS]
    return table(["class", "layers", *counts, f"lowest after {TRIALS[-1]}", "sooner as fast"], rows)


def compiled(files: Iterable[Results]) -> str:
    """Return a row for each network compiled without trials on each device class, and the mean of each
    class."""
    without = "latency without trials relative to"
    after = re.compile(r"latency after \d+ trials relative to (.*)")
    rows = []
    for name, label, found in _networks(files, without):
        more = {match[1]: each.value for what, each in found.items() if (match := after.fullmatch(what))}
        rows.append(
            [
                name,
                label,
                f"{number(found['latency, tunefarm compile'].value)} ms",
                _value(found.get(f"{without} ONNX Runtime")),
                _value(found.get(f"{without} OpenVINO")),
                number(more["ONNX Runtime"]) if "ONNX Runtime" in more else "",
                number(more["OpenVINO"]) if "OpenVINO" in more else "",
                f"{number(found['from upload to artifact without trials'].value)} s",
            ]
        )
    headers = ["class", "network", "compiled", "of ONNX Runtime", "of OpenVINO", "one trial: of ONNX Runtime"]
    return table([*headers, "one trial: of OpenVINO", "took"], _with_means(rows, range(3, 7)))


def tuned(files: Iterable[Results]) -> str:
    """Return a row for each tuned network on each device class, and the mean of each class."""
    of_fastest = re.compile("latency relative to the fast.*")
    rows = []
    for name, label, found in _networks(_without(files, OF_METASCHEDULE), "speed-up over TVM untuned"):
        fastest = next((each for what, each in found.items() if of_fastest.fullmatch(what)), None)
        whole = found.get(OF_LIMITS)
        rows.append(
            [
                name,
                label,
                "" if whole is None else (whole.peer or "").partition(",")[0],
                f"{number(found['latency, tunefarm'].value)} ms",
                _value(found.get("latency relative to ONNX Runtime")),
                _value(found.get("latency relative to OpenVINO")),
                _value(fastest),
                f"{number(1 / found['speed-up over TVM untuned'].value)}",
                f"{number(found['trials'].value)} in {number(found['from start to finish'].value)} s",
            ]
        )
    headers = ["class", "network", "peak", "tuned", "of ONNX Runtime", "of OpenVINO", "of the fastest peer"]
    return table([*headers, "of TVM untuned", "trials"], _with_means(rows, range(4, 8)))


def peers(files: Iterable[Results]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the latency of each other runtime relative to ours, by device class and network."""
    found: defaultdict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    marker = "latency relative to "
    for name, label, by_name in _networks(_without(files, OF_METASCHEDULE), "speed-up over TVM untuned"):
        found[name][label] = {
            what.removeprefix(marker): 1 / figure.value
            for what, figure in by_name.items()
            if what.startswith(marker) and not what.startswith((f"{marker}the fast", OF_LIMIT))
        }
    return dict(found)


def equal_trials(files: Iterable[Results]) -> str:
    """Return a row for each network that MetaSchedule tuned, too, with as many trials."""
    rows = []
    for name, label, found in _networks(files, OF_METASCHEDULE):
        ratio, rates = found[OF_METASCHEDULE], found["trials a second relative to MetaSchedule"]
        rows.append(
            [
                name,
                label,
                number(found["trials"].value),
                f"{number(found['latency, tunefarm'].value)} ms",
                f"{number(found['latency, MetaSchedule'].value)} ms",
                number(ratio.value),
                f"{number(found['from start to finish'].value)} s",
                number(rates.value),
            ]
        )
    headers = ["class", "network", "trials", "tuned", "MetaSchedule's", "ratio", "took", "trials a second"]
    return table(headers, rows or [["not measured", *[""] * 7]])


def limits(files: Iterable[Results]) -> str:
    """Return a row for each tuned network that was held against its machine's limits."""
    rows = []
    for name, label, found in _networks(files, OF_LIMITS):
        farthest = [
            f"`{what.removeprefix(OF_LIMIT)}`: {figure.peer}"
            for what, figure in found.items()
            if what.startswith(OF_LIMIT)
        ]
        whole = found[OF_LIMITS]
        rows.append([name, label, number(whole.value), whole.peer or "", "; ".join(farthest[:3])])
    headers = ["class", "network", "limits over subgraphs", "the machine", "farthest above their limits"]
    return table(headers, rows or [["not measured", *[""] * 4]])


def element_types(files: Iterable[Results]) -> str:
    """Return a row for each network in each type; of several runs, the last one counts."""
    rows: dict[tuple[str, str], list[str]] = {}
    for results in sorted(files, key=lambda each: each.date):
        found = {figure.name: figure for figure in results.figures}
        for name, deviation in found.items():
            if not (match := TYPE.fullmatch(name)):
                continue
            label, kind = match[1], match[2]
            rows[label, kind] = [
                label,
                kind,
                _value(found[f"{label}: latency, {kind}"]),
                _value(found.get(f"{label}: latency of {kind} relative to float32")),
                _value(found.get(f"{label}: latency of {kind} relative to ONNX Runtime on the same file")),
                _value(deviation),
            ]
    headers = ["network", "type", "latency", "of float32", "of ONNX Runtime on the same file"]
    return table([*headers, "largest difference"], [*rows.values()] or [["not measured", *[""] * 5]])


def sizes(files: Iterable[Results]) -> str:
    """Return a row for each size that was tuned together with others."""
    rows = []
    for results in files:
        for each in results.figures:
            label, found, what = each.name.rpartition(": ")
            if found and what == TOGETHER:
                low, high = each.spread or (each.value, each.value)
                span = f"{number(low)} to {number(high)}"
                rows.append([label, number(each.value), span, _aim(each), each.peer or ""])
    headers = ["size", "together over alone", "of blocks", "aim", "latencies"]
    return table(headers, rows or [["not measured", *[""] * 4]])


def zoo(files: Iterable[Results]) -> str:
    """Return a row for each network of the zoo, below those of all together, which may be of several runs."""
    networks: list[Figure] = []
    right = count = 0
    problems: list[str] = []
    for results in files:
        for each in results.figures:
            if found := RIGHT.fullmatch(each.name):
                right, count = right + int(each.value), count + int(found[1])
                problems += [each.peer] if each.peer else []
            elif SHARE_OF.fullmatch(each.name):
                networks.append(each)
    rows = []
    if networks:
        mean, aim = statistics.mean(each.value for each in networks), at_least(95)
        verdict = f"{aim.words}: {'reached' if aim.kept(mean) else 'missed'}"
        rows = [
            ["all: right", f"{right} of {count}", "all", "; ".join(problems)],
            ["all: mean", f"{number(mean)} %", verdict, ""],
        ]
        rows += [[each.name.partition(":")[0], _value(each), "", each.peer or ""] for each in networks]
    headers = ["network", "time in tuned subgraphs", "aim", "more"]
    return table(headers, rows or [["not measured", "", "", ""]])


def processes(files: Iterable[Results]) -> str:
    """Return a row for each number of servers and schedulers on one database."""
    cores = ("server", "scheduler", "PostgreSQL", "simulated workers")
    rows = []
    for results in files:
        found = {figure.name: figure for figure in results.figures}
        for name, stored in found.items():
            if counts := PROCESSES.fullmatch(name):
                label, limit = name.partition(":")[0], (stored.peer or "").removeprefix("limited by ")
                used = [_value(found.get(f"{label}: cores used by {kind}")) for kind in cores]
                rows.append([counts[1], counts[2], _value(stored), *used, limit])
    rows = rows or [["not measured", *[""] * 7]]
    used = [f"cores: {name}" for name in ("servers", "schedulers", *cores[2:])]
    return table(["servers", "schedulers", "trials", *used, "limited by"], rows)


def levels(soak: Results | None) -> str:
    """Return a row for everything that the soak watched and that isn't empty: whether it levels off. Of the
    database's tables, only the one that grew by the largest part of what it may is shown."""
    watched: list[tuple[str, Figure]] = []
    rows: list[tuple[str, Figure]] = []
    for figure in soak.figures if soak is not None else ():
        name, _, what = figure.name.rpartition(": ")
        if what == LEVEL and not (figure.peer or "").startswith("mean 0,"):
            (rows if name.endswith(": rows") else watched).append((name, figure))
    if rows:
        name, figure = max(rows, key=lambda row: row[1].value / float((row[1].aim or "").split()[-1]))
        closest = name.removesuffix(": rows")
        watched.append((f"rows of {len(rows)} tables, the one that came closest: {closest}", figure))
    cells = [[name, figure.peer or "", _value(figure), _aim(figure)] for name, figure in watched]
    cells = cells or [["not measured", *[""] * 3]]
    return table(["watched", "level", "growth in six hours", "allowed"], cells)


def others(files: Mapping[str, Results]) -> str:
    """Return the headlines of the other benchmarks; a headline whose file or figure is missing has no row."""
    rows = []
    for file, names in HEADLINES.items():
        found = {figure.name: figure for figure in files[file].figures} if file in files else {}
        rows += [[file, name, _value(found[name]), _aim(found[name])] for name in names if name in found]
    return table(["run", "figure", "value", "aim"], rows)


def missed(files: Mapping[str, Results]) -> str:
    """Return every figure of every file that misses its aim, those that differ in their label only in one
    row."""
    found: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for file, results in files.items():
        for figure in results.figures:
            # The lowest of several stands again under its own name.
            if figure.reached is False and not figure.name.startswith("lowest of these"):
                label, _, what = figure.name.partition(": ")
                if " " in label or not what:
                    label, what = "", figure.name
                value = f"{label} {_value(figure)}".strip()
                found[file, what, figure.aim or ""].append(value)
    rows = [[file, what, aim, ", ".join(values)] for (file, what, aim), values in found.items()]
    return table(["run", "figure", "aim", "instead"], rows)


def runs(files: Mapping[str, Results]) -> str:
    """Return date, commit, instruction sets and command of every file."""
    rows = [
        [
            file,
            results.date[:16].replace("T", " "),
            results.commit or "?",
            device_class(results),
            f"`{_flags(results)}`",
        ]
        for file, results in files.items()
    ]
    return table(["run", "date", "commit", "instruction sets", "`python -m benchmarks.`..."], rows)


def _networks(files: Iterable[Results], marker: str) -> list[tuple[str, str, dict[str, Figure]]]:
    """Return (class, network, figures by what they say) of each network with a figure that begins with
    `marker`.

    Of several runs of a network on a class, the last one counts.
    """
    found: dict[tuple[str, str], dict[str, Figure]] = {}
    for results in sorted(files, key=lambda each: each.date):
        of_network: defaultdict[str, dict[str, Figure]] = defaultdict(dict)
        for figure in results.figures:
            label, _, what = figure.name.partition(": ")
            of_network[label][what] = figure
        for label, figures in of_network.items():
            if " of " not in label and any(what.startswith(marker) for what in figures):
                found[device_class(results), label] = figures
    order = list(INSTRUCTION_SETS.values())
    measured = sorted(found.items(), key=lambda each: (order.index(each[0][0]), *each[0]))
    return [(name, label, figures) for (name, label), figures in measured]


def _without(files: Iterable[Results], name: str) -> list[Results]:
    """Return the runs that have no such figure of any network."""
    return [
        results
        for results in files
        if not any(figure.name.endswith(f": {name}") for figure in results.figures)
    ]


def _with_means(rows: Sequence[list[str]], columns: range) -> list[list[str]]:
    """Return the rows of each device class above the geometric means of their ratios; classes without rows
    say so."""
    result = []
    for name in INSTRUCTION_SETS.values():
        own = [row for row in rows if row[0] == name]
        if not own:
            result.append([name, "not measured", *[""] * (columns.stop - 1)])
            continue
        values = [[float(row[column]) for row in own if row[column]] for column in columns]
        means = [number(statistics.geometric_mean(each)) if each else "" for each in values]
        result += [*own, [name, f"mean of {len(own)}", *[""] * (columns.start - 2), *means, ""]]
    return result


def _value(figure: Figure | None) -> str:
    if figure is None:
        return ""
    return f"{number(figure.value)} {figure.unit}".strip().removesuffix(" x")


def _aim(figure: Figure) -> str:
    return "" if figure.aim is None else f"{figure.aim}: {'reached' if figure.reached else 'missed'}"


def _flags(results: Results) -> str:
    command = re.sub(r"^python -m (benchmarks\.)?| --json \S+", "", results.command)
    return re.sub(r"( --(?:layer|network|operator) )\S+(?:\1\S+)+", r"\1...", command)

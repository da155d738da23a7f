"""The report: tables and plots are made from files of figures."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.report import __main__ as report
from benchmarks.report import summary
from benchmarks.results import figures
from benchmarks.results.curves import CURVES, Curve, Point
from benchmarks.results.figures import Figure, Results, at_least, at_most, figure
from benchmarks.results.searches import SEARCHES, Search

NATIVE = "a processor (sse4_2, avx, avx2, avx512f), 2 threads"
CURVE = Curve("resnet18", (Point(10.0, 16, 0.05), Point(20.0, 64, 0.02)), 0.012, 0.5, 0.011)


def results(*found: Figure, flags: str = "", date: str = "2025-01-02", machine: str = NATIVE) -> Results:
    return Results(found, machine, date, f"python -m benchmarks.networks{flags} --json f.json", "abc1234")


def tuned(network: str = "resnet18", latency_ms: float = 10.0) -> tuple[Figure, ...]:
    return (
        figure(f"{network}: speed-up over TVM untuned", 32.0, "x", aim=at_least(30)),
        figure(f"{network}: latency, tunefarm", latency_ms, "ms"),
        figure(f"{network}: latency relative to ONNX Runtime", 0.8, "x"),
        figure(f"{network}: trials", 300, ""),
        figure(f"{network}: from start to finish", 92.0, "s"),
    )


def layer(device_class: str, name: str, ratio: float, trials: int = 64) -> Figure:
    what = f"MetaSchedule's latency relative to ours after {trials} trials"
    return figure(f"{device_class}, {name}: {what}", ratio, "x")


def layers_time(device_class: str, count: int, ratio: float) -> Figure:
    what = "MetaSchedule's seconds for 64 trials relative to ours until as fast"
    return figure(f"geometric mean of {count} operators: {device_class}: {what}", ratio, "x")


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "benchmarks").mkdir()
    results(*tuned()).write(tmp_path / "benchmarks" / "networks.json")
    CURVES.write([CURVE], tmp_path / "benchmarks" / "networks.json")
    return tmp_path


def run(folder: Path, *flags: str, name: str = "networks.json") -> int:
    return report.main([str(folder / "benchmarks" / name), "--plots", str(folder / "plots"), *flags])


def test_running_it_again_changes_nothing(folder: Path) -> None:
    files = [folder / "plots" / name for name in ("peers.svg", "networks-resnet18.svg")]
    assert run(folder) == 0
    first = [file.read_bytes() for file in files]
    assert run(folder) == 0
    assert [file.read_bytes() for file in files] == first


def test_curves_are_drawn_small(folder: Path) -> None:
    run(folder)
    drawn = (folder / "plots" / "networks-resnet18.svg").read_text()
    assert len(drawn) < 40_000
    assert all(word in drawn for word in ("ONNX Runtime", "TVM untuned", "seconds since the job was sent"))


def test_other_runtimes_are_relative_to_ours() -> None:
    peers = [
        figure("resnet18: latency relative to OpenVINO", 0.5, "x"),
        figure("resnet18: latency relative to the fastest of ONNX Runtime and OpenVINO", 0.8, "x"),
        figure("resnet18: latency relative to the machine's limit, conv", 2.0, "x"),
    ]
    wide, narrow = results(*tuned(), *peers), results(*tuned("dcgan"), flags=" --device-class avx2")
    assert summary.peers([narrow, wide]) == {
        "AVX-512": {"resnet18": {"ONNX Runtime": 1.25, "OpenVINO": 2.0}},
        "AVX2": {"dcgan": {"ONNX Runtime": 1.25}},
    }


def test_other_runtimes_are_drawn_and_long_bars_are_labelled(folder: Path) -> None:
    slow = figure("resnet18: latency relative to PyTorch", 0.1, "x")
    results(*tuned(), slow).write(folder / "benchmarks" / "networks.json")
    run(folder)
    drawn = (folder / "plots" / "peers.svg").read_text()
    assert all(f">{word}</text>" in drawn for word in ("ONNX Runtime", "PyTorch", "resnet18", "10.0"))
    assert ">OpenVINO</text>" not in drawn, "it wasn't measured"


def test_the_plots_are_what_the_figures_kept_here_make_them(tmp_path: Path) -> None:
    assert report.main(["--plots", str(tmp_path)]) == 0
    drawn = {plot.name: plot.read_bytes() for plot in tmp_path.iterdir()}
    assert drawn == {plot.name: plot.read_bytes() for plot in report.PLOTS.iterdir()}


@pytest.mark.parametrize("name", ["networks.curves.jsonl", "absent.json"])
def test_files_without_figures_are_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run(folder, name=name) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_details_are_a_page_with_all_figures_and_plots(folder: Path) -> None:
    file = folder / "benchmarks" / "operators.json"
    speedup = figure("speed-up", 32.5, "x", aim=at_least(30), peer="1 + 2 |b|", spread=(31.0, 33.5))
    results(speedup).write(file)
    found = [Search.of("GMM", engine, [(1.0, 2e-3), (2.0, 1e-3)]) for engine in ("ours", "MetaSchedule")]
    SEARCHES.write([Search.of("C2D", "ours", [(1.0, math.inf)]), *found], file)
    assert run(folder, "--details", str(folder / "pages"), name="operators.json") == 0
    page = (folder / "pages" / "operators.md").read_text()
    assert "| speed-up | 32.5 x | 31 .. 33.5 | at least 30: reached | 1 + 2 \\|b\\| |" in page
    assert "Measured 2025-01-02 at commit abc1234 with `python -m benchmarks.networks" in page
    for name in ("seconds", "trials"):
        assert f"(operators-{name}.svg)" in page
        assert "MetaSchedule" in (folder / "pages" / f"operators-{name}.svg").read_text()
    assert not (folder / "plots").exists(), "only the pages were asked for"


def test_searches_that_are_none_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "benchmarks" / "networks.searches.jsonl").write_text("{}\n")
    assert run(folder, "--details", str(folder / "pages")) == 1
    assert "networks.searches.jsonl holds no searches" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "machine", "name"),
    [
        ("", NATIVE, "AVX-512"),
        ("", "a processor (sse4_2, avx, avx2), 2 threads", "AVX2"),
        (" --device-class native", NATIVE, "AVX-512"),
        (" --device-class avx2", NATIVE, "AVX2"),
        (" --device-class sse42", "a processor (sse4_2, avx2, avx512f; given up: avx), 2 threads", "SSE4.2"),
        ("", "a board (asimd)", "unknown"),
    ],
)
def test_a_run_has_the_device_class_that_everyone_was_kept_to(flags: str, machine: str, name: str) -> None:
    assert summary.device_class(results(flags=flags, machine=machine)) == name


def test_layers_of_a_class_are_taken_together_from_all_files() -> None:
    first = results(
        layer("native", "dense", 2.0), layer("native", "conv", 1.0), layers_time("native", 2, 10.0)
    )
    second = results(layer("native", "dense", 8.0), layers_time("native", 1, 80.0), date="2025-01-03")
    third = results(layer("avx2", "dense", 3.0), layer("avx2", "dense", 5.0, 1), layers_time("avx2", 1, 7.0))
    found = rows(summary.layers([second, first, third]))
    # The later of the two measurements of one layer counts; times weigh as many layers as they are of.
    assert [found[0][at] for at in (0, 1, 5, 6, 7)] == ["AVX-512", "2", "2.83", "1 (conv)", "20 x"]
    assert [found[1][at] for at in (0, 1, 2, 5)] == ["AVX2", "1", "5", "3"]
    assert found[2][:2] == ["SSE4.2", "not measured"]


def test_networks_are_sorted_by_class_and_have_a_mean() -> None:
    older, newer = results(*tuned(latency_ms=99.0)), results(*tuned(), date="2025-01-03")
    other = results(*tuned("bert_base"), flags=" --device-class avx2")
    found = rows(summary.tuned([newer, other, older]))
    assert [row[:4] for row in found] == [
        ["AVX-512", "resnet18", "", "10 ms"],
        ["AVX-512", "mean of 1", "", ""],
        ["AVX2", "bert_base", "", "10 ms"],
        ["AVX2", "mean of 1", "", ""],
        ["SSE4.2", "not measured", "", ""],
    ]
    assert found[0][4:] == ["0.8", "", "", "0.0312", "300 in 92 s"]


def test_a_network_that_metaschedule_tuned_too_has_a_row_of_its_own() -> None:
    equal = results(
        *tuned(latency_ms=99.0),
        figure("resnet18: latency relative to MetaSchedule", 0.5, "x"),
        figure("resnet18: latency, MetaSchedule", 198.0, "ms"),
        figure("resnet18: trials a second relative to MetaSchedule", 4.0, "x"),
        date="2025-01-03",
    )
    runs = [results(*tuned()), equal]
    assert rows(summary.equal_trials(runs)) == [
        ["AVX-512", "resnet18", "300", "99 ms", "198 ms", "0.5", "92 s", "4"]
    ]
    assert rows(summary.tuned(runs))[0][3] == "10 ms", "with all peers, and more trials"


def test_the_subgraphs_farthest_above_their_limits_are_named() -> None:
    machine = "2 TFLOP/s, 9 GB/s"
    limits = [
        figure("resnet18: the machine's limits relative to the subgraphs' latencies", 0.8, "x", peer=machine),
        figure("resnet18: latency relative to the machine's limit, conv", 2.0, "x", peer="8 of 10 ms"),
        figure("resnet18: latency relative to the machine's limit, pool", 1.5, "x", peer="2 of 10 ms"),
    ]
    runs = [results(*tuned(), *limits), results(*tuned("bert_base"))]
    assert rows(summary.limits(runs)) == [
        ["AVX-512", "resnet18", "0.8", machine, "`conv`: 8 of 10 ms; `pool`: 2 of 10 ms"]
    ]
    assert {row[1]: row[2] for row in rows(summary.tuned(runs))[:2]} == {
        "bert_base": "",
        "resnet18": "2 TFLOP/s",
    }, "the peak that calibration measured"


def test_servers_and_schedulers_have_a_row_for_each_number_of_them() -> None:
    figures = []
    for count, stored in ((1, 20.0), (2, 30.0)):
        label = f"2 servers, {count} schedulers"
        figures += [
            Figure(f"{label}: trials stored", stored, "/s", peer="limited by the devices"),
            Figure(f"{label}: cores used by server", 0.5, ""),
            Figure(f"{label}: cores used by scheduler", float(count), ""),
            Figure(f"{label}: cores used by PostgreSQL", 0.2, ""),
            Figure(f"{label}: cores used by simulated workers", 0.1, ""),
        ]
    assert rows(summary.processes([results(*figures)])) == [
        ["2", "1", "20 /s", "0.5", "1", "0.2", "0.1", "the devices"],
        ["2", "2", "30 /s", "0.5", "2", "0.2", "0.1", "the devices"],
    ]
    assert rows(summary.processes([]))[0][0] == "not measured"


def test_a_network_has_a_row_for_each_type_and_the_last_run_counts() -> None:
    def run(latency_ms: float, date: str) -> Results:
        return results(
            figure("resnet18: latency, int8", latency_ms, "ms"),
            figure("resnet18: latency of int8 relative to float32", 0.5, "x"),
            figure("resnet18: latency of int8 relative to ONNX Runtime on the same file", 0.9, "x"),
            figure("resnet18: largest difference of int8, relative to the largest output", 0.02, ""),
            date=date,
        )

    found = rows(summary.element_types([run(5.0, "2025-01-03"), run(7.0, "2025-01-02")]))
    assert found == [["resnet18", "int8", "5 ms", "0.5", "0.9", "0.02"]]
    assert rows(summary.element_types([]))[0][0] == "not measured"


def test_each_size_has_a_row() -> None:
    name = f"encoder: tokens=16: {summary.TOGETHER}"
    ratio = figure(name, 1.02, "x", aim=at_most(1.05), peer="2 ms, alone 1.9 ms", spread=(1.0, 1.1))
    assert rows(summary.sizes([results(ratio), results(*tuned())])) == [
        ["encoder: tokens=16", "1.02", "1 to 1.1", "at most 1.05: reached", "2 ms, alone 1.9 ms"]
    ]
    assert rows(summary.sizes([]))[0][0] == "not measured"


def test_the_zoo_has_a_row_for_each_network_of_all_runs() -> None:
    def run(name: str, share: float, problem: str = "") -> Results:
        return results(
            figure("networks that are right, of 1", 0 if problem else 1, "", aim=at_least(1), peer=problem),
            figure(summary.SHARE, share, "%", aim=at_least(95)),
            figure(f"{name}: share of run time in tuned subgraphs", share, "%", peer="3 subgraphs"),
        )

    found = rows(summary.zoo([run("decoder", 98.0), run("half", 90.0, "half: differs"), results(*tuned())]))
    assert found == [
        ["all: right", "1 of 2", "all", "half: differs"],
        ["all: mean", "94 %", "at least 95: missed", ""],
        ["decoder", "98 %", "", "3 subgraphs"],
        ["half", "90 %", "", "3 subgraphs"],
    ]
    assert rows(summary.zoo([]))[0][0] == "not measured"


def test_what_a_soak_watched_is_shown_unless_it_is_empty() -> None:
    memory = Figure("server-1: memory: growth in the second half", 1.5, "MiB", "at most 4", True, "mean 120")
    empty = Figure(
        "tokens: rows: growth in the second half", 0.0, "", "at most 150", True, "mean 0, at the end 0"
    )
    tables = [
        Figure(f"{name}: rows: growth in the second half", grown, "", f"at most {allowed}", True, "mean 9")
        for name, grown, allowed in (("jobs", 3.0, 12), ("events", 8.0, 150))
    ]
    soak = results(Figure("faults", 80.0, ""), memory, empty, *tables)
    assert rows(summary.levels(soak)) == [
        ["server-1: memory", "mean 120", "1.5 MiB", "at most 4: reached"],
        ["rows of 2 tables, the one that came closest: jobs", "mean 9", "3", "at most 12: reached"],
    ]
    assert rows(summary.levels(None))[0][0] == "not measured"


def test_missed_aims_of_one_figure_share_a_row() -> None:
    late = [figure(f"{name}: latency", 2.0, "x", aim=at_most(1)) for name in ("GMM", "C2D")]
    whole = figure("published latency, median of all: resnet18", 9.0, "%", aim=at_most(3))
    repeated = figure("lowest of these: latency", 2.0, "x", aim=at_most(1))
    files = {"networks": results(*late, whole, repeated, figure("kept", 1.0, "x", aim=at_most(1)))}
    assert rows(summary.missed(files)) == [
        ["networks", "latency", "at most 1", "GMM 2, C2D 2"],
        ["networks", "published latency, median of all: resnet18", "at most 3", "9 %"],
    ]


def test_every_file_is_a_run_with_date_commit_and_flags() -> None:
    flags = " --layer a --layer b --rounds 4"
    assert rows(summary.runs({"unseen": results(flags=flags, date="2025-01-02T03:04:05+00:00")})) == [
        ["unseen", "2025-01-02 03:04", "abc1234", "AVX-512", "`networks --layer ... --rounds 4`"]
    ]


def test_every_headline_is_a_figure_of_its_file() -> None:
    for file, names in summary.HEADLINES.items():
        found = {each.name for each in figures.read(report.FIGURES / f"{file}.json").figures}
        assert found.issuperset(names)

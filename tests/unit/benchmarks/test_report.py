"""The report: tables and plots are made from files of figures."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.report import __main__ as report
from benchmarks.report import summary
from benchmarks.results import figures
from benchmarks.results.curves import CURVES, Curve, Point
from benchmarks.results.figures import Figure, Results, at_least, at_most, figure
from benchmarks.results.metrics import (
    ALL_SUBGRAPHS,
    BANDWIDTH,
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
from benchmarks.results.searches import SEARCHES, Search

CURVE = Curve("resnet18", (Point(10.0, 16, 0.05), Point(20.0, 64, 0.02)), 0.012, 0.5, 0.011)


def results(*found: Figure, flags: str = "", date: str = "2025-01-02", on: str = "AVX-512") -> Results:
    command = f"python -m benchmarks.networks{flags} --json f.json"
    return Results(found, "a processor, 2 threads", date, command, "abc1234", on)


def ratio(value: float, peer: str, condition: str = "", note: str = "", subject: str = "resnet18") -> Figure:
    return figure(LATENCY, value, "x", peer=peer, subject=subject, condition=condition, note=note)


def tuned(network: str = "resnet18", latency_ms: float = 10.0) -> tuple[Figure, ...]:
    return (
        figure(SPEED_UP, 32.0, "x", peer="TVM untuned", subject=network, aim=at_least(30)),
        figure(LATENCY, latency_ms, "ms", subject=network, condition="tunefarm"),
        ratio(0.8, "ONNX Runtime", subject=network),
        figure(TRIALS, 300, "", subject=network),
        figure(TOTAL_TIME, 92.0, "s", subject=network),
    )


def layer(device_class: str, name: str, value: float, trials: int = 64) -> Figure:
    condition = after_trials(trials)
    return figure(
        SPEED_UP,
        value,
        "x",
        peer="MetaSchedule",
        subject=name,
        condition=condition,
        device_class=device_class,
    )


def layers_time(device_class: str, count: int, value: float) -> Figure:
    return figure(TUNING_SPEED_UP, value, "x", peer="MetaSchedule", device_class=device_class, count=count)


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


def test_running_the_report_again_changes_nothing(folder: Path) -> None:
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
    peers = [ratio(0.5, "OpenVINO"), ratio(0.8, FASTEST_PEER), ratio(2.0, MACHINE_LIMIT, "conv")]
    wide, narrow = results(*tuned(), *peers), results(*tuned("dcgan"), on="AVX2")
    assert summary.peers([narrow, wide]) == {
        "AVX-512": {"resnet18": {"ONNX Runtime": 1.25, "OpenVINO": 2.0}},
        "AVX2": {"dcgan": {"ONNX Runtime": 1.25}},
    }


def test_other_runtimes_are_drawn_and_long_bars_are_labelled(folder: Path) -> None:
    slow = ratio(0.1, "PyTorch")
    results(*tuned(), slow).write(folder / "benchmarks" / "networks.json")
    run(folder)
    drawn = (folder / "plots" / "peers.svg").read_text()
    assert all(f">{word}</text>" in drawn for word in ("ONNX Runtime", "PyTorch", "resnet18", "10.0"))
    assert ">OpenVINO</text>" not in drawn, "it wasn't measured"


def test_the_stored_plots_follow_from_the_stored_figures(tmp_path: Path) -> None:
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
    speedup = figure("speed-up", 32.5, "x", aim=at_least(30), note="1 + 2 |b|", spread=(31.0, 33.5))
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


def test_invalid_searches_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "benchmarks" / "networks.searches.jsonl").write_text("{}\n")
    assert run(folder, "--details", str(folder / "pages")) == 1
    assert "networks.searches.jsonl holds no searches" in capsys.readouterr().err


def test_layers_of_a_class_are_taken_together_from_all_files() -> None:
    first = results(
        layer("native", "dense", 2.0), layer("native", "conv", 1.0), layers_time("native", 2, 10.0)
    )
    second = results(layer("native", "dense", 8.0), layers_time("native", 1, 80.0), date="2025-01-03")
    third = results(layer("avx2", "dense", 3.0), layer("avx2", "dense", 5.0, 1), layers_time("avx2", 1, 7.0))
    found = rows(summary.layers([second, first, third]))
    # The later of the two measurements of one layer counts; times weigh as many layers as they are of.
    assert [found[0][at] for at in (0, 1, 5, 6, 7)] == ["AVX-512", "2", "2.83", "1 (conv)", "20"]
    assert [found[1][at] for at in (0, 1, 2, 5)] == ["AVX2", "1", "5", "3"]
    assert found[2][:2] == ["SSE4.2", "not measured"]


def test_networks_are_sorted_by_class_and_have_a_mean() -> None:
    older, newer = results(*tuned(latency_ms=99.0)), results(*tuned(), date="2025-01-03")
    other = results(*tuned("bert_base"), *tuned("resnet18-batch-8", latency_ms=40.0), on="AVX2")
    found = rows(summary.tuned([newer, other, older]))
    assert [row[:4] for row in found] == [
        ["AVX-512", "resnet18", "", "10 ms"],
        ["AVX-512", "mean of 1", "", ""],
        ["AVX2", "bert_base", "", "10 ms"],
        ["AVX2", "resnet18-batch-8", "", "40 ms"],
        ["AVX2", "mean of 1", "", ""],
        ["SSE4.2", "not measured", "", ""],
    ]
    assert found[0][4:] == ["0.8", "", "", "0.0312", "300 in 92 s"]


def test_a_network_that_metaschedule_tuned_too_has_a_row_of_its_own() -> None:
    equal = results(
        *tuned(latency_ms=99.0),
        ratio(0.5, "MetaSchedule"),
        figure(LATENCY, 198.0, "ms", subject="resnet18", condition="MetaSchedule"),
        figure(TRIALS_A_SECOND, 4.0, "x", peer="MetaSchedule", subject="resnet18"),
        date="2025-01-03",
    )
    runs = [results(*tuned()), equal]
    assert rows(summary.equal_trials(runs)) == [
        ["AVX-512", "resnet18", "300", "99 ms", "198 ms", "0.5", "92 s", "4"]
    ]
    assert rows(summary.tuned(runs))[0][3] == "10 ms", "with all peers, and more trials"


def test_the_subgraphs_farthest_above_their_limits_are_named() -> None:
    limits = [
        figure(PEAK, 2000.0, "GFLOP/s", subject="resnet18"),
        figure(BANDWIDTH, 9.0, "GB/s", subject="resnet18"),
        ratio(1.25, MACHINE_LIMIT, ALL_SUBGRAPHS),
        ratio(2.0, MACHINE_LIMIT, "conv", note="8 of 10 ms"),
        ratio(1.5, MACHINE_LIMIT, "pool", note="2 of 10 ms"),
    ]
    runs = [results(*tuned(), *limits), results(*tuned("bert_base"))]
    machine = "2000 GFLOP/s, 9 GB/s from memory"
    assert rows(summary.limits(runs)) == [
        ["AVX-512", "resnet18", "1.25", machine, "`conv`: 8 of 10 ms; `pool`: 2 of 10 ms"]
    ]
    assert {row[1]: row[2] for row in rows(summary.tuned(runs))[:2]} == {
        "bert_base": "",
        "resnet18": "2000 GFLOP/s",
    }, "the peak that calibration measured"


def test_a_network_that_was_compiled_only_has_a_row() -> None:
    found = results(
        ratio(1.2, "ONNX Runtime", WITHOUT_TRIALS),
        ratio(1.5, "OpenVINO", WITHOUT_TRIALS),
        ratio(1.1, "ONNX Runtime", ONE_TRIAL),
        figure(LATENCY, 12.0, "ms", subject="resnet18", condition="tunefarm compile"),
        figure(TIME_TO_ARTIFACT, 9.0, "s", subject="resnet18", condition=WITHOUT_TRIALS),
    )
    first, *_ = rows(summary.compiled([found, results(*tuned())]))
    assert first == ["AVX-512", "resnet18", "12 ms", "1.2", "1.5", "1.1", "", "9 s"]


def test_servers_and_schedulers_have_a_row_for_each_number_of_them() -> None:
    figures = []
    for count, stored in ((1, 20.0), (2, 30.0)):
        label = f"2 servers, {count} schedulers"
        figures.append(figure(TRIALS_STORED, stored, "/s", subject=label, note="limited by the devices"))
        cores = {"server": 0.5, "scheduler": float(count), "PostgreSQL": 0.2, "simulated workers": 0.1}
        for kind, used in cores.items():
            figures.append(figure(CORES_USED, used, "", subject=label, condition=kind))
    figures.append(figure(TRIALS_STORED, 9.0, "/s", condition="1000 workers"))
    assert rows(summary.processes([results(*figures)])) == [
        ["2 servers, 1 schedulers", "20 /s", "0.5", "1", "0.2", "0.1", "limited by the devices"],
        ["2 servers, 2 schedulers", "30 /s", "0.5", "2", "0.2", "0.1", "limited by the devices"],
    ]
    assert rows(summary.processes([]))[0][0] == "not measured"


def test_a_network_has_a_row_for_each_type_and_the_last_run_counts() -> None:
    def run(latency_ms: float, date: str) -> Results:
        return results(
            figure(LATENCY, latency_ms, "ms", subject="resnet18", condition="int8"),
            ratio(0.5, "float32", "int8"),
            ratio(0.9, "ONNX Runtime", "int8"),
            ratio(1.1, "OpenVINO", "int8"),
            figure(LARGEST_DIFFERENCE, 0.02, "", subject="resnet18", condition="int8"),
            date=date,
        )

    other = replace(run(9.0, "2025-01-04"), instruction_set="AVX2")
    found = rows(summary.element_types([run(5.0, "2025-01-03"), run(7.0, "2025-01-02"), other]))
    assert [row[:4] for row in found] == [
        ["AVX-512", "resnet18", "int8", "5 ms"],
        ["AVX2", "resnet18", "int8", "9 ms"],
    ]
    assert found[0][4:] == ["0.5", "0.9", "1.1", "0.02"]
    assert rows(summary.element_types([]))[0][0] == "not measured"


def test_each_size_has_a_row() -> None:
    together = figure(
        TUNED_TOGETHER,
        1.02,
        "x",
        subject="encoder, tokens=16",
        aim=at_most(1.05),
        spread=(1.0, 1.1),
        note="2 ms, alone 1.9 ms",
    )
    assert rows(summary.sizes([results(together), results(*tuned())])) == [
        ["encoder, tokens=16", "1.02", "1 to 1.1", "at most 1.05: reached", "2 ms, alone 1.9 ms"]
    ]
    assert rows(summary.sizes([]))[0][0] == "not measured"


def test_the_zoo_has_a_row_for_each_network_of_all_runs() -> None:
    def run(name: str, share: float, problem: str = "") -> Results:
        return results(
            figure(RIGHT_NETWORKS, 0 if problem else 1, "of 1", count=1, aim=at_least(1), note=problem),
            figure(f"mean {TUNED_SHARE}", share, "%", count=1, aim=at_least(95)),
            figure(TUNED_SHARE, share, "%", subject=name, note="3 subgraphs"),
        )

    found = rows(summary.zoo([run("decoder", 98.0), run("half", 90.0, "half: differs"), results(*tuned())]))
    assert found == [
        ["all: right", "1 of 2", "all", "half: differs"],
        ["all: mean", "94 %", "at least 95: missed", ""],
        ["decoder", "98 %", "", "3 subgraphs"],
        ["half", "90 %", "", "3 subgraphs"],
    ]
    assert rows(summary.zoo([]))[0][0] == "not measured"


def test_the_figures_of_a_soak_are_shown_if_there_are_any() -> None:
    def level(subject: str, kind: str, mean: float, growth: float, allowed: float) -> list[Figure]:
        aim = at_most(allowed)
        return [
            figure(MEAN_LEVEL, mean, "", subject=subject, condition=kind),
            figure(GROWTH, growth, "", subject=subject, condition=kind, aim=aim, note="at the end 9"),
        ]

    soak = results(
        figure("faults", 80.0, ""),
        *level("server-1", "memory", 120.0, 1.5, 4),
        *level("tokens", "rows", 0.0, 0.0, 150),
        *level("jobs", "rows", 9.0, 3.0, 12),
        *level("events", "rows", 9.0, 8.0, 150),
    )
    assert rows(summary.levels(soak)) == [
        ["server-1: memory", "120", "1.5", "at most 4: reached", "at the end 9"],
        [
            "rows of 2 tables, the one closest to its bound: jobs",
            "9",
            "3",
            "at most 12: reached",
            "at the end 9",
        ],
    ]
    assert rows(summary.levels(None))[0][0] == "not measured"


def test_missed_aims_of_one_figure_share_a_row() -> None:
    late = [figure(LATENCY, 2.0, "x", subject=name, aim=at_most(1)) for name in ("GMM", "C2D")]
    whole = figure("published latency", 9.0, "%", condition="median of all", aim=at_most(3))
    repeated = figure(LOWEST_SPEED_UP, 0.5, "x", aim=at_least(1))
    files = {"networks": results(*late, whole, repeated, figure("kept", 1.0, "x", aim=at_most(1)))}
    assert rows(summary.missed(files)) == [
        ["networks", "latency", "at most 1", "GMM 2, C2D 2"],
        ["networks", "published latency, median of all", "at most 3", "9 %"],
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

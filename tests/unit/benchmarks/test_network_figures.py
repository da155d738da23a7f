"""Figures of networks, with the aims of each network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from benchmarks.device_class import NATIVE
from benchmarks.networks.compiled import AFTER, AT_ONCE
from benchmarks.networks.figures import figures_of_compiled, figures_of_disturbed, figures_of_tuned
from benchmarks.networks.limits import Limits, parts_of
from benchmarks.networks.peers import OPENVINO
from benchmarks.networks.plan import TUNED, Plan
from benchmarks.networks.session import Recorder, Tuning
from benchmarks.networks.tuned import TunedNetwork
from benchmarks.results.curves import Point
from benchmarks.results.figures import Figure
from benchmarks.timing.deviation import Deviation
from benchmarks.timing.interleaved import Block, Timings
from core.job import JobState
from tests.unit.benchmarks.measured import COMPILED, DISTURBED, JOB, MEASURED, PEERS, TUNING
from tunefarm.cli.progress import JobProgress, SilentJobDisplay
from tunefarm.client.values import DeviceClass, Task

PUBLISHED = "median difference of published latencies from a user's process"
FASTER = "latency relative to the fastest peer"


def _named(found: Sequence[Figure]) -> dict[str, Figure]:
    by_name = {figure.name: figure for figure in found}
    assert len(by_name) == len(found)
    return by_name


def _by_name(measured: TunedNetwork) -> dict[str, Figure]:
    """Return the figures by their names without the network's label."""
    found = _named(figures_of_tuned([measured]))
    return {name.removeprefix(f"{measured.label}: "): figure for name, figure in found.items()}


def test_resnet18_is_compared_with_its_aims() -> None:
    found = _by_name(MEASURED)
    gain, ahead = found["speed-up over TVM untuned"], found[FASTER]
    assert (gain.value, gain.aim, gain.reached) == (pytest.approx(40), "at least 30", True)
    assert (ahead.value, ahead.aim, ahead.reached) == (pytest.approx(0.8), "at most 0.77", False)
    assert gain.note == "TVM untuned: 440 ms"
    assert ahead.note == "ONNX Runtime 1: 13.8 ms; of ONNX Runtime and OpenVINO"
    rate = found["trials a second, from start to finish"]
    assert (rate.value, rate.aim, rate.reached) == (3.75, "at least 4", False)
    assert found["deviation relative to the allowed one"].reached is True


def test_subgraphs_are_compared_with_the_limits_of_their_machine() -> None:
    found = _by_name(MEASURED)
    name = "latency relative to the machine's limit, "
    # Twice 4e8 operations at 2e11/s, and 1e7 bytes at 1e10/s, in 2 * 4 ms + 2 ms.
    assert found[f"{name}all subgraphs"].value == pytest.approx(10e-3 / (4e-3 + 1e-3))
    peaks = [(found[each].value, found[each].unit) for each in ("calibrated peak", "memory bandwidth")]
    assert peaks == [(pytest.approx(200), "GFLOP/s"), (pytest.approx(10), "GB/s")]
    parts = [f"{name}all subgraphs", f"{name}conv", f"{name}pool"]
    assert [each for each in found if each.startswith(name)] == parts
    assert found[f"{name}conv"].value == pytest.approx(2.0)
    assert found[f"{name}conv"].note == "8 of 10 ms, limit 4 ms, 2 times winograd_4"


def test_a_subgraph_counts_by_its_fastest_variant() -> None:
    direct = Task("a", "conv", 1, True, "", 1, 3e-3, flops=2e8, num_bytes=1.0)
    filtered = replace(direct, workload="b", best_s=1e-3, variant="winograd_4", variant_of="a", flops=1e8)
    (part,) = parts_of([direct, filtered], Limits(flops_per_s=2e11, bytes_per_s=1e10))
    assert (part.variant, part.measured_s, part.limit_s) == ("winograd_4", 1e-3, pytest.approx(5e-4))


def test_a_machine_that_nobody_calibrated_has_no_limits() -> None:
    with pytest.raises(ValueError, match="a board wasn't calibrated"):
        Limits.of(DeviceClass("cafe", "a board", 4, 16))


def test_published_latencies_are_compared_beside_a_busy_process_and_after_it() -> None:
    noisy = replace(DISTURBED, label="dcgan", tuning=replace(TUNING, job=replace(JOB, noisy=True)))
    found = _named(figures_of_disturbed([DISTURBED, noisy]))
    for when, percent, reached in (
        ("beside a process that uses a core for a third of the time", 0.0, True),
        ("after that process ended", 25.0, False),
    ):
        median = found[f"{PUBLISHED}, {when}"]
        assert (median.value, median.reached, median.count) == (pytest.approx(percent), reached, 2)
        ratio = found[f"resnet18: published latency relative to a user's process, {when}"]
        assert ratio.value == pytest.approx(1 + percent / 100)
    assert [found[f"{name}: trials"].note for name in ("resnet18", "dcgan")] == ["", "marked as noisy"]


def test_each_peer_has_a_figure_and_the_faster_one_counts() -> None:
    fast = dict(MEASURED.timings) | {OPENVINO: Timings((0.005, 0.006))}
    found = _by_name(replace(MEASURED, timings=fast))
    assert found["latency relative to ONNX Runtime"].value == pytest.approx(0.8)
    assert found["latency relative to OpenVINO"].value == pytest.approx(2.0)
    assert found["latency relative to OpenVINO"].aim is None
    assert (found[FASTER].value, found[FASTER].reached) == (pytest.approx(2.0), False)
    assert found[FASTER].note == "OpenVINO 2: 5.5 ms; of ONNX Runtime and OpenVINO"


def test_without_openvino_no_figure_names_openvino() -> None:
    timings = {name: each for name, each in MEASURED.timings.items() if name != OPENVINO}
    found = _by_name(replace(MEASURED, timings=timings, peers=PEERS[:1]))
    assert not any(OPENVINO in name for name in found)
    assert found["latency relative to ONNX Runtime"].value == pytest.approx(0.8)


def test_aims_that_are_missed_are_not_reached() -> None:
    slow = replace(
        MEASURED,
        tuning=replace(TUNING, job_s=96.0),
        timings=dict(MEASURED.timings) | {TUNED: Timings((0.02, 0.02))},
        untuned=replace(MEASURED.untuned, theirs=Timings((0.02, 0.02))),
        deviation=Deviation(1.01, 1.0, 1.0),
    )
    assert _by_name(slow)["latency of the exported database in TVM relative to the artifact"].reached
    missed = {name for name, figure in _by_name(slow).items() if figure.reached is False}
    assert missed == {
        "speed-up over TVM untuned",
        FASTER,
        "trials a second, from start to finish",
        "deviation relative to the allowed one",
        PUBLISHED,
    }


def test_other_networks_have_aims_of_agreement_and_publication_only() -> None:
    found = _by_name(replace(MEASURED, label="squeezenet1_1"))
    assert [name for name, figure in found.items() if figure.aim] == [
        "published latency relative to its kernels",
        "deviation relative to the allowed one",
        PUBLISHED,
    ]


def test_the_mean_over_networks_takes_each_networks_fastest_peer() -> None:
    slow = dict(MEASURED.timings) | {OPENVINO: Timings((0.005, 0.006))}
    other = replace(MEASURED, label="other", timings=slow)
    mean = _named(figures_of_tuned([MEASURED, other]))[
        "geometric mean of 2 networks: latency relative to the fastest peer"
    ]
    assert (mean.value, mean.reached) == (pytest.approx((0.8 * 2.0) ** 0.5), False)


def test_the_published_latency_is_compared_with_the_measured_latency() -> None:
    found = _by_name(MEASURED)
    ratio = found["published latency relative to a user's process"]
    assert ratio.value == pytest.approx((0.01 / 0.01 + 0.01 / 0.012) / 2)
    assert ratio.note == "published: 10 ms, seen: 11 ms"
    others = [
        replace(MEASURED, label=label, tuning=_published(secs))
        for label, secs in (("a", 0.0112), ("b", 0.022))
    ]
    off = _named(figures_of_tuned([MEASURED, *others]))[PUBLISHED]
    assert (off.value, off.aim, off.reached) == (pytest.approx(100 / 11), "at most 3", False)
    assert off.note == "3 published models; at most 100 %"
    assert _by_name(replace(MEASURED, tuning=_published(0.0112)))[PUBLISHED].reached is True


def test_the_published_latency_is_compared_with_the_sum_of_its_kernels() -> None:
    name = "published latency relative to its kernels"
    alone = _by_name(MEASURED)[name]
    # Twice 4 ms and once 2 ms.
    assert (alone.value, alone.aim, alone.reached) == (pytest.approx(1.0), "at most 1.05", True)
    assert alone.note == "published: 10 ms, kernels: 10 ms"
    assert _by_name(replace(MEASURED, tuning=_published(0.0106)))[name].reached is False
    unmeasured = replace(TUNING, tasks=[*TUNING.tasks, replace(TUNING.tasks[0], workload="c", best_s=None)])
    assert name not in _by_name(replace(MEASURED, tuning=unmeasured))


def test_a_network_of_several_images_is_named_by_its_batch(tmp_path: Path) -> None:
    plan = Plan(
        network="squeezenet1_1",
        batch=3,
        tiny=True,
        threads=1,
        rounds=1,
        block=Block(),
        device_class=NATIVE,
        masked={},
    )
    file = plan.write(tmp_path)
    assert file.name == "squeezenet1_1-tiny-batch-3.onnx"
    (given,) = onnx.load(file).graph.input
    assert given.type.tensor_type.shape.dim[0].dim_value == 3
    assert replace(plan, batch=1).label == "squeezenet1_1-tiny"


def _published(*tuned_s: float) -> Tuning:
    return replace(TUNING, manifest=replace(TUNING.manifest, tuned_s=tuned_s))


def test_the_published_model_is_the_fastest() -> None:
    assert _published(0.3, 0.1, 0.2).manifest.latency_s == 0.2
    assert _published(0.5).manifest.latency_s == 0.4
    assert replace(TUNING.manifest, published_s=(0.005,)).latency_s == 0.005
    never = replace(TUNING.manifest, untuned_s=(), tuned_s=())
    assert never.latency_s is None
    unknown = replace(MEASURED, tuning=replace(TUNING, manifest=never))
    assert not any("published" in name for name in _by_name(unknown))


def test_compiled_networks_are_compared_with_onnxruntime_on_average() -> None:
    other = replace(
        COMPILED,
        label="vit_b16",
        timings=dict(COMPILED.timings) | {AT_ONCE: Timings((0.01, 0.01)), AFTER: Timings((0.01, 0.01))},
    )
    found = _named(figures_of_compiled([COMPILED, other]))
    assert found["resnet18: latency relative to ONNX Runtime, without trials"].value == 2.0
    assert found["resnet18: latency relative to OpenVINO, without trials"].value == pytest.approx(1.25)
    assert found[
        "resnet18: latency relative to ONNX Runtime, after a trial for each subgraph"
    ].value == pytest.approx(1.2)
    mean = "geometric mean of 2 networks: latency"
    at_once = found[f"{mean} relative to ONNX Runtime, without trials"]
    assert (at_once.value, at_once.aim) == (pytest.approx(2**0.5), "at most 1.5")
    assert (at_once.reached, at_once.note) == (True, "1 (vit_b16) .. 2 (resnet18)")
    after = found[f"{mean} relative to ONNX Runtime, after a trial for each subgraph"]
    assert (after.value, after.aim) == (pytest.approx(1.2**0.5), "at most 1.25")
    assert found["resnet18: subgraphs"].value == 2
    assert found["resnet18: published latency relative to a user's process, without trials"].value == 1.0


def test_latencies_and_their_spread_are_milliseconds() -> None:
    figure = _by_name(MEASURED)["latency, tunefarm"]
    assert (figure.value, figure.unit) == (pytest.approx(11.0), "ms")
    assert figure.spread == pytest.approx((10.2, 11.8))


def test_metaschedule_is_compared_over_as_many_trials() -> None:
    found = _by_name(MEASURED)
    assert found["trials a second, MetaSchedule"].value == pytest.approx(300 / 330)
    ratio = found["trials a second relative to MetaSchedule"]
    assert ratio.value == pytest.approx(3.75 / (300 / 330))
    assert ratio.note is not None
    assert "64 trials (2 failed) in 94 s, 30 s of it set-up" in ratio.note


def test_without_metaschedule_the_other_figures_stand() -> None:
    found = _by_name(replace(MEASURED, peer_rate=None))
    assert not any("MetaSchedule" in name for name in found)
    assert found["trials a second, from start to finish"].value == 3.75


def test_the_rates_differ_in_what_they_leave_out() -> None:
    found = _by_name(MEASURED)
    assert found["trials a second, on a running stack"].value == 4.0
    assert found["trials a second, while searching"].value == 5.0
    assert found["time to come within 10% of the last estimate"].value == 50.0


def _picture(at_s: float, state: JobState, trials: int, best_s: float | None) -> JobProgress:
    task = Task("hash", "conv", 2, covered=True, reason="", trials=trials, best_s=best_s)
    return JobProgress(replace(JOB, state=state, trials_done=trials), [task], None, at_s)


def test_a_recorder_keeps_a_point_for_every_change() -> None:
    recorder = Recorder(SilentJobDisplay())
    for picture in (
        _picture(100.0, JobState.IMPORTING, 0, None),
        _picture(101.0, JobState.TUNING, 0, None),
        _picture(103.5, JobState.TUNING, 16, 0.002),
        _picture(104.5, JobState.TUNING, 16, 0.002),
        _picture(106.0, JobState.TUNING, 32, 0.001),
        _picture(109.0, JobState.PUBLISHING, 32, 0.001),
    ):
        recorder.show(picture)
    assert recorder.points(start_s=100.0) == (Point(3.5, 16, 0.004), Point(6.0, 32, 0.002))
    assert recorder.search_s() == 5.0


def test_a_search_that_was_never_seen_has_no_length() -> None:
    recorder = Recorder(SilentJobDisplay())
    recorder.show(_picture(1.0, JobState.DONE, 8, None))
    assert recorder.search_s() is None
    assert recorder.points(0.0) == ()

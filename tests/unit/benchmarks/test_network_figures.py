"""What was measured becomes figures with the aims of its network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.networks.figures import figures_of
from benchmarks.networks.network import TUNED, Measured
from benchmarks.networks.tuning import Recorder
from benchmarks.results.curves import Point
from benchmarks.results.figures import Figure
from benchmarks.timing.agreement import Deviation
from benchmarks.timing.interleaved import Timings
from tests.unit.benchmarks.measured import JOB, MEASURED, TUNING
from tunefarm.progress import Picture, SilentDisplay
from tunefarm.values import JobState, Task


def _by_name(measured: Measured) -> dict[str, Figure]:
    found = figures_of(measured)
    by_name = {figure.name.removeprefix(f"{measured.label}: "): figure for figure in found}
    assert len(by_name) == len(found)
    return by_name


def test_resnet18_is_held_against_its_aims() -> None:
    found = _by_name(MEASURED)
    gain, behind = found["speed-up over TVM untuned"], found["latency relative to ONNX Runtime"]
    assert (gain.value, gain.aim, gain.reached) == (pytest.approx(40), "at least 30", True)
    assert (behind.value, behind.aim, behind.reached) == (pytest.approx(1.25), "at most 1.5", True)
    assert gain.peer == "TVM untuned: 440 ms"
    assert behind.peer is not None
    assert behind.peer.endswith(": 8.8 ms")
    rate = found["trials a second from start to finish"]
    assert (rate.value, rate.aim, rate.reached) == (3.75, "at least 3", True)
    assert found["deviation relative to what is allowed"].reached is True


def test_aims_that_are_missed_are_not_reached() -> None:
    slow = replace(
        MEASURED,
        tuning=replace(TUNING, total_s=101.0),
        timings=dict(MEASURED.timings) | {TUNED: Timings((0.02, 0.02))},
        deviation=Deviation(1.01, 1.0, 1.0),
    )
    assert _by_name(slow)["exported database in TVM relative to the artifact"].reached
    missed = {name for name, figure in _by_name(slow).items() if figure.reached is False}
    assert missed == {
        "speed-up over TVM untuned",
        "latency relative to ONNX Runtime",
        "trials a second from start to finish",
        "deviation relative to what is allowed",
    }


def test_other_networks_only_have_to_agree() -> None:
    found = _by_name(replace(MEASURED, label="resnet50"))
    assert [name for name, figure in found.items() if figure.aim] == ["deviation relative to what is allowed"]


def test_latencies_and_their_spread_are_milliseconds() -> None:
    figure = _by_name(MEASURED)["latency, tunefarm"]
    assert (figure.value, figure.unit) == (pytest.approx(11.0), "ms")
    assert figure.spread == pytest.approx((10.2, 11.8))


def test_metaschedule_is_compared_over_as_many_trials() -> None:
    found = _by_name(MEASURED)
    assert found["trials a second, MetaSchedule"].value == pytest.approx(300 / 330)
    ratio = found["trials a second relative to MetaSchedule"]
    assert ratio.value == pytest.approx(3.75 / (300 / 330))
    assert ratio.peer is not None
    assert "64 trials (2 failed) in 94 s, 30 s of it set-up" in ratio.peer


def test_without_metaschedule_the_other_figures_stand() -> None:
    found = _by_name(replace(MEASURED, peer_rate=None))
    assert not any("MetaSchedule" in name for name in found)
    assert found["trials a second from start to finish"].value == 3.75


def test_the_rates_differ_in_what_they_leave_out() -> None:
    found = _by_name(MEASURED)
    assert found["trials a second on a running stack"].value == 4.0
    assert found["trials a second while searching"].value == 5.0
    assert found["until 10% above the last estimate"].value == 50.0


def _picture(at_s: float, state: JobState, trials: int, best_s: float | None) -> Picture:
    task = Task("hash", "conv", 2, covered=True, reason="", trials=trials, best_s=best_s)
    return Picture(replace(JOB, state=state, trials_done=trials), [task], None, None, at_s)


def test_a_recorder_keeps_a_point_for_every_change() -> None:
    recorder = Recorder(SilentDisplay())
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
    recorder = Recorder(SilentDisplay())
    recorder.show(_picture(1.0, JobState.DONE, 8, None))
    assert recorder.search_s() is None
    assert recorder.points(0.0) == ()

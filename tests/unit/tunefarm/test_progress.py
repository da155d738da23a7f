"""The progress of a job: estimates and displays."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from core.job import MAX_TRIALS, JobState
from core.model_latency import network_s
from tests.unit.tunefarm.samples import job, task
from tunefarm.cli.progress import (
    JobProgress,
    PlainJobDisplay,
    SilentJobDisplay,
    TrialRate,
    by_time,
    display,
    render,
    share,
    task_table,
)
from tunefarm.client.values import OnnxRuntime

TASKS = (task("conv1", weight=2, best_s=0.003), task("softmax", covered=False, reason="no [reduction] rule"))


def progress(at_s: float = 0.0, **changes: object) -> JobProgress:
    return JobProgress(job(seconds_left=20.0, **changes), TASKS, 3.0, at_s)


def console(*, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=100, height=20, force_terminal=terminal, color_system=None)


def text_of(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def test_plain_lines_come_at_changes_and_every_ten_seconds() -> None:
    out = console()
    plain = PlainJobDisplay(out)
    for at_s, done in ((0.0, 0), (1.0, 3), (9.0, 30), (10.0, 40), (11.0, 50)):
        plain.show(progress(at_s, trials_done=done))
    plain.show(progress(12.0, state=JobState.DONE))
    lines = text_of(out).splitlines()
    assert [line.split(" · ")[1] for line in lines[:2]] == ["0/100 trials", "40/100 trials"]
    assert lines[0] == "net: tuning · 0/100 trials · 3.0 trials/s · 6 ms (estimate) · 20 s left"
    assert lines[2:] == ["net: done"]


def test_a_plain_line_that_says_the_same_is_repeated_only_as_a_sign_of_life() -> None:
    out = console()
    plain = PlainJobDisplay(out)
    for at_s in range(700):
        plain.show(progress(float(at_s), message=f"round {at_s // 350}"))
    assert [line.rpartition(" · ")[2] for line in text_of(out).splitlines()] == [
        *("round 0", "round 0", "round 1", "round 1"),
    ]
    # Another job that says the same has a line of its own, and a changed message that isn't shown has none.
    plain.show(progress(700.0, id="j2", message="round 1"))
    for message in ("first", "second"):
        plain.show(progress(700.0, id="j2", state=JobState.DONE, message=message))
    assert len(text_of(out).splitlines()) == 6


def test_model_names_are_not_parsed_as_markup() -> None:
    out = console()
    PlainJobDisplay(out).show(progress(model_name="[red]x[/red]"))
    assert "[red]x[/red]: tuning" in text_of(out)


def test_the_live_display_shows_tasks_rate_and_fallbacks() -> None:
    out = console()
    out.print(render(progress(trials_done=40), 100, 20))
    text = text_of(out)
    for part in ("40/100 trials", "3.0 trials/s", "conv1", "3 ms", "100%", "fallback: no [reduction] rule"):
        assert part in text


def test_the_live_display_keeps_to_one_line_each_in_80_columns() -> None:
    narrow = Console(file=io.StringIO(), width=80, height=24, color_system=None)
    layer = "layer4.0.conv2: conv2d_add_add_relu 1x1x1x64 3x3x64x64 -> 1x1x1x64"
    verdict = "0% of memory bandwidth: try more trials"
    tasks = [replace(task(f"{number}.{layer}", best_s=0.003), verdict=verdict) for number in range(9)]
    told = job(seconds_left=80.0, trials_done=40, message="round 1: measuring 17 candidates " * 4)
    narrow.print(render(JobProgress(told, tasks, 0.2, 0.0), 80, 13))
    lines = text_of(narrow).splitlines()
    assert (
        lines[0].rstrip() == "net: tuning · 40/100 trials · 0.2 trials/s · 27 ms (estimate) · 1 min 20 s left"
    )
    assert lines[1].startswith("round 1: measuring")
    assert lines[3].split() == ["task", "times", "trials", "best", "of", "network", "verdict"]
    assert len(lines) == 3 + 1 + 5 + 1
    assert max(map(len, lines)) <= 80
    assert all("3 ms" in line and "0%: try more trials" in line for line in lines[4:9])


def test_a_job_that_is_done_leaves_its_message_to_the_results() -> None:
    out = console()
    plain = PlainJobDisplay(out)
    plain.show(progress(message="searching"))
    plain.show(progress(state=JobState.DONE, message="0.5 ms, 2 times faster than untuned"))
    assert text_of(out).splitlines()[0].endswith("20 s left · searching")
    assert text_of(out).splitlines()[1:] == ["net: done"]


def test_a_long_table_is_cut() -> None:
    out = console()
    out.print(task_table([task(f"t{number}") for number in range(5)], rows=2))
    assert "and 3 more" in text_of(out)
    assert "t3" not in text_of(out)


@pytest.mark.parametrize("width", [80, 40])
def test_a_live_display_fits_a_narrow_terminal_and_keeps_what_matters(width: int) -> None:
    narrow = Console(file=io.StringIO(), width=width, height=24, color_system=None)
    tasks = [replace(task(f"conv{number}", best_s=0.003), verdict="try more trials") for number in range(40)]
    peer = OnnxRuntime("1.31.1", 0.16, (0.16,))
    told = job(
        seconds_left=80.0, trials_done=40, message="round 1: measuring 17 candidates", onnxruntime=peer
    )
    narrow.print(render(JobProgress(told, tasks, 0.2, 0.0), *narrow.size))
    lines = text_of(narrow).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) < narrow.height
    said = " ".join(" ".join(lines).replace("·", " ").split())
    for part in ("120 ms (estimate)", "about 1.33 times as fast as ONNX Runtime", "1 min 20 s left"):
        assert part in said
    assert sum("3 ms" in line and line.startswith("conv") for line in lines) >= 8


def test_a_first_guess_is_never_0_times_as_fast() -> None:
    peer = OnnxRuntime("1.31.1", 1e-5, (1e-5,))
    assert "less than 0.01 times as fast as ONNX Runtime" in progress(onnxruntime=peer).parts
    assert "about" not in progress(onnxruntime=peer).headline


def test_the_display_suits_the_console() -> None:
    with display(console(), silent=True) as shown:
        assert isinstance(shown, SilentJobDisplay)
    with display(console(), silent=False) as shown:
        assert isinstance(shown, PlainJobDisplay)
    out = console(terminal=True)
    with display(out, silent=False) as shown:
        shown.show(progress(trials_done=40))
    assert "40/100 trials" in text_of(out)


@pytest.mark.parametrize(("trials", "done", "text"), [(100, 3, "3/100"), (0, 3, "3/3"), (0, 0, "0/0")])
def test_first_guesses_may_go_beyond_the_budget(trials: int, done: int, text: str) -> None:
    assert job(trials=trials, trials_done=done).trials_text == text


def test_the_rate_covers_the_last_minute() -> None:
    rate = TrialRate()
    rate.note(0.0, 0)
    assert rate.trials_per_s() is None
    rate.note(10.0, 20)
    assert rate.trials_per_s() == 2.0
    rate.note(70.0, 50)
    assert rate.trials_per_s() == 0.5


def test_without_a_number_of_trials_those_done_are_shown() -> None:
    assert job(trials=MAX_TRIALS, trials_done=7).trials_text == "7"
    out = console()
    out.print(render(progress(trials=MAX_TRIALS, trials_done=7), 100, 20))
    assert " 7 trials" in text_of(out)


def test_the_time_left_may_be_unknown() -> None:
    assert "time left unknown" in JobProgress(job(), TASKS, None, 0.0).headline


def test_a_line_has_no_number_without_a_unit_and_the_ratio_once_it_is_known() -> None:
    unmeasured = (task("conv1"),)
    line = JobProgress(job(), unmeasured, None, 0.0).headline
    assert line == "net: tuning · 0/100 trials · no latency yet · time left unknown"
    peer = OnnxRuntime("1.31.1", 0.0262, (0.0262,), 1.31)
    for state in (JobState.PUBLISHING, JobState.DONE):
        line = JobProgress(job(state=state, onnxruntime=peer), TASKS, None, 0.0).headline
        assert line == f"net: {state} · 1.31 times as fast as ONNX Runtime"
    early = OnnxRuntime("1.31.1", 0.0262, (0.0262,))
    line = JobProgress(job(seconds_left=20.0, onnxruntime=early), TASKS, 3.0, 0.0).headline
    assert line == (
        "net: tuning · 0/100 trials · 3.0 trials/s · 6 ms (estimate) · "
        "about 4.37 times as fast as ONNX Runtime · 20 s left"
    )
    assert "ONNX" not in JobProgress(job(onnxruntime=early), unmeasured, 3.0, 0.0).headline
    untimed = job(state=JobState.DONE, onnxruntime=OnnxRuntime(note="no CPU"))
    assert JobProgress(untimed, TASKS, None, 0.0).headline == "net: done"


def test_the_network_is_the_weighted_sum_of_its_covered_tasks() -> None:
    tasks = [task("a", weight=2, best_s=0.003), task("b", best_s=0.004), task("f", covered=False)]
    assert network_s(tasks) == pytest.approx(0.010)
    assert share(tasks[0], tasks) == pytest.approx(0.6)
    assert share(tasks[2], tasks) is None
    assert network_s([*tasks, task("c")]) is None
    assert network_s([]) is None


def test_only_the_fastest_variant_of_a_subgraph_counts() -> None:
    own, faster = task("conv", weight=2, best_s=0.003), task("winograd", weight=2, best_s=0.002)
    faster = replace(faster, variant="winograd_4", variant_of=own.workload)
    dense = task("dense", weight=1, best_s=0.006)
    listed = (own, faster, dense)
    assert network_s(listed) == pytest.approx(0.010)
    assert (share(own, listed), share(faster, listed)) == (None, pytest.approx(0.4))
    assert by_time(listed) == [dense, faster, own]
    assert network_s((replace(own, best_s=None), faster, dense)) == pytest.approx(0.010)


def test_the_slowest_task_comes_first_and_uncovered_tasks_last() -> None:
    tasks = [task("f", covered=False), task("slow", best_s=2.0), task("fast", best_s=1.0), task("new")]
    assert [one.name for one in by_time(tasks)] == ["slow", "fast", "new", "f"]


def test_a_row_names_the_layer_and_what_to_do() -> None:
    out = console()
    named = replace(
        task("conv2d_add 1x8 -> 1x8", weight=4, best_s=0.003),
        layer="layer1.0.conv2",
        verdict="41% of peak: try",
    )
    task_table([named]).print(out)
    text = " ".join(text_of(out).split())
    assert "layer1.0.conv2: conv2d_add 1x8 -> 1x8" in text
    assert "41% of peak: try" in text


VERDICTS = {
    "75% of peak arithmetic: more trials may help": "75%: more trials may help",
    "faster than memory: its operands stay in a cache": "faster than memory",
    "faster than the calibrated peak": "faster than the peak",
}


def test_no_verdict_is_cut_in_80_columns() -> None:
    name = "layer1.0.conv2: conv2d_add_add_relu 1x56x56x64 3x3x64x64 -> 1x56x56x64"
    tasks = [replace(task(name, weight=12, best_s=4e-7), verdict=verdict) for verdict in VERDICTS]
    reason = "no rule for a reduction whose output is an input of another one"
    tasks.append(
        replace(task("pool", best_s=1e-5, covered=False), reason=reason, verdict="1%: try more trials")
    )
    narrow = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    task_table(tasks).print(narrow)
    rows = [line.rstrip() for line in text_of(narrow).splitlines()[1:]]
    assert max(map(len, rows)) <= 80
    for row, short in zip(rows, VERDICTS.values(), strict=False):
        assert row.startswith("layer1.0.conv2: ")
        assert row.endswith(f"  {short}")
    # What the search can't tune has its reason instead, which may be cut.
    assert "  fallback: no rule" in rows[-1]
    whole = console()
    task_table(tasks).print(Console(file=whole.file, width=200, color_system=None))
    for verdict in (*VERDICTS, f"fallback: {reason}"):
        assert verdict in text_of(whole)

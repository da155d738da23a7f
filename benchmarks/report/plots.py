"""Plots of measurements as small SVG files with real text. Equal measurements give equal bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.results.curves import Curve, Point
from benchmarks.results.random_programs import RandomPrograms
from benchmarks.results.searches import Search

PANELS_A_ROW = 4
# The runtimes of the bar chart: name in figures, name in the legend, colour. IREE's bars would be too long.
PEERS = (
    ("ONNX Runtime", "ONNX Runtime", "tab:green"),
    ("OpenVINO", "OpenVINO", "tab:blue"),
    ("torch.compile (max-autotune)", "torch.compile", "tab:orange"),
    ("PyTorch", "PyTorch", "tab:red"),
)
# Longer bars are cut off here, and labelled.
HIGHEST = 3.0


def draw_curve(curve: Curve) -> bytes:
    """Draw a network's latency over seconds and over trials, with its peers' latencies as lines."""
    with _style():
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        by_seconds, by_trials = figure.subplots(1, 2, sharey=True)
        _panel(by_seconds, [point.at_s for point in curve.points], curve)
        _panel(by_trials, [float(point.trials) for point in curve.points], curve)
        by_seconds.set(xlabel="seconds since the job was sent", ylabel="latency, ms")
        by_trials.set(xlabel="trials")
        by_trials.legend(loc="upper right", fontsize=8)
        figure.suptitle(curve.network)
        return _svg(figure)


def draw_peers(classes: Mapping[str, Mapping[str, Mapping[str, float]]]) -> bytes:
    """Draw a row of bars for each device class: latencies relative to ours, by network and runtime."""
    with _style():
        figure = Figure(figsize=(8, 0.6 + 2.2 * max(1, len(classes))), layout="constrained")
        rows = figure.subplots(max(1, len(classes)), 1, squeeze=False).ravel()
        for axes, (name, networks) in zip(rows, classes.items(), strict=False):
            for at, (peer, label, colour) in enumerate(PEERS):
                width = 0.8 / len(PEERS)
                for place, found in enumerate(networks.values()):
                    if peer not in found:
                        continue
                    left = place - 0.4 + width * (at + 0.5)
                    axes.bar(left, min(found[peer], HIGHEST), width, color=colour, label=label)
                    if found[peer] > HIGHEST:
                        text = f"{found[peer]:.1f}"
                        axes.text(left, HIGHEST, text, ha="center", va="bottom", fontsize=7, color=colour)
            axes.axhline(1.0, color="black", linewidth=1)
            axes.set_xticks(range(len(networks)), list(networks), rotation=20, ha="right", fontsize=8)
            axes.set(ylabel=name, ylim=(0, HIGHEST * 1.1))
        if classes:
            handles, labels = rows[0].get_legend_handles_labels()
            by_label = dict(zip(labels, handles, strict=True))
            by_label["tunefarm = 1"] = Line2D([], [], color="black", linewidth=1)
            figure.legend(by_label.values(), by_label.keys(), loc="outside upper center", ncols=5, fontsize=8)
        figure.supylabel("latency relative to tunefarm")
        return _svg(figure)


def draw_random_programs(programs: Sequence[RandomPrograms]) -> bytes:
    """Draw one panel for each operator: sorted latencies of both engines' random programs over the
    fastest."""
    with _style():
        figure, panels = _panels(len(programs))
        for axes, each in zip(panels, programs, strict=True):
            _ranked(axes, each)
        panels[0].legend(loc="upper left", fontsize=8)
        figure.supxlabel("share of the random programs")
        figure.supylabel("times the fastest's latency")
        return _svg(figure)


def draw_searches_by_seconds(searches: Sequence[Search]) -> bytes:
    """Draw one panel for each operator: every search's best latency over the fastest one's, over seconds.

    Every search has at least one point.
    """
    return _draw_searches(
        searches, lambda point: point.at_s, lambda search: search.seconds, "seconds of the search"
    )


def draw_searches_by_trials(searches: Sequence[Search]) -> bytes:
    """Draw the same over trials."""
    return _draw_searches(searches, lambda point: point.trials, lambda search: search.trials, "trials")


def _draw_searches(
    searches: Sequence[Search],
    place: Callable[[Point], float],
    end: Callable[[Search], float],
    across: str,
) -> bytes:
    operators = list(dict.fromkeys(search.operator for search in searches))
    colours = {engine: f"C{at}" for at, engine in enumerate(dict.fromkeys(s.engine for s in searches))}
    with _style():
        figure, panels = _panels(len(operators))
        for axes, operator in zip(panels, operators, strict=True):
            own = [search for search in searches if search.operator == operator]
            best_s = min(search.points[-1].latency_s for search in own)
            for search in own:
                places = [*map(place, search.points), end(search)]
                heights = [point.latency_s / best_s for point in search.points]
                axes.step(places, [*heights, heights[-1]], where="post", color=colours[search.engine])
            axes.set_title(operator, fontsize=9)
            axes.set_xscale("log")
            _logarithmic(axes)
        lines = [Line2D([], [], color=colour, label=engine) for engine, colour in colours.items()]
        figure.legend(handles=lines, loc="outside upper center", ncols=4, fontsize=8)
        figure.supxlabel(across)
        figure.supylabel("times the fastest's latency")
        return _svg(figure)


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    """Return `count` panels, PANELS_A_ROW in a row."""
    rows = math.ceil(count / PANELS_A_ROW)
    figure = Figure(figsize=(8, max(2.6, 1.9 * rows)), layout="constrained")
    panels = figure.subplots(rows, PANELS_A_ROW, sharex=True, sharey=True, squeeze=False).ravel()
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, list(panels[:count])


def _ranked(axes: Axes, programs: RandomPrograms) -> None:
    best_s = min((*programs.ours_s, *programs.theirs_s), default=1.0)
    for name, secs, colour in (
        ("ours", programs.ours_s, "tab:blue"),
        ("MetaSchedule", programs.theirs_s, "tab:orange"),
    ):
        axes.plot(np.linspace(0, 1, len(secs)), np.array(secs) / best_s, color=colour, label=name)
    axes.set_title(programs.operator, fontsize=9)
    _logarithmic(axes)


def _style() -> AbstractContextManager[None]:
    return mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tunefarm", "font.size": 9})


def _svg(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return b"\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + b"\n"


def _panel(axes: Axes, across: list[float], curve: Curve) -> None:
    lines = (
        ("TVM untuned", curve.untuned_s, "tab:red", ":"),
        ("ONNX Runtime", curve.onnxruntime_s, "tab:green", "--"),
        ("tuned, end to end", curve.tuned_s, "tab:blue", "-."),
    )
    for name, secs, colour, style in lines:
        axes.axhline(secs * 1e3, color=colour, linestyle=style, linewidth=1, label=name)
    heights = [point.latency_s * 1e3 for point in curve.points]
    axes.step(across, heights, where="post", color="tab:blue", label="sum of its tasks")
    _logarithmic(axes)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.set_xlim(left=0)


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, which="major", alpha=0.3)

"""Draws curves as small SVG files whose text stays text; the same curve gives the same bytes."""

from __future__ import annotations

import io

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.curves import Curve


def draw(curve: Curve) -> bytes:
    """The network's latency against seconds and against trials, with its peers' as lines."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tunefarm", "font.size": 9}):
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        by_seconds, by_trials = figure.subplots(1, 2, sharey=True)
        _panel(by_seconds, [point.at_s for point in curve.points], curve)
        _panel(by_trials, [float(point.trials) for point in curve.points], curve)
        by_seconds.set(xlabel="seconds since the job was sent", ylabel="latency, ms")
        by_trials.set(xlabel="trials")
        by_trials.legend(loc="upper right", fontsize=8)
        figure.suptitle(curve.network)
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
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(left=0)
    axes.grid(visible=True, which="major", alpha=0.3)

"""The parts of a run that has a fixed number of seconds, most valuable first.

Each part is this benchmark's command for one network, product or operator. It has its own processes and time
limit. So a part that hangs or crashes doesn't affect the others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.device import MEANINGLESS
from benchmarks.gpu.networks import means_of
from benchmarks.results import figures
from benchmarks.results.figures import MEAN, Figure, figure
from benchmarks.results.output import Output

# Seconds in which a part must stop its processes after SIGINT. It has written its figures before.
STOP_S = 15.0
# Seconds of a network's part beside the job's import and trials: calibration, the start of a stack,
# publishing, and timing beside PyTorch; and at most, for each of torch.compile and JAX, its compilation.
BESIDE_TRIALS_S, PEER_S = 60.0, 30.0
LEAST_TRIALS_S = 40.0


@dataclass(frozen=True)
class Part:
    """The arguments of a part's command. It takes at most `limit_s` seconds, and needs at least `least_s` to
    start."""

    name: str
    arguments: tuple[str, ...]
    limit_s: float
    least_s: float

    def command(self, given_s: float) -> tuple[str, ...]:
        """Return the arguments for a part that may take `given_s` seconds."""
        if "--network" not in self.arguments:
            return self.arguments
        minutes = max(given_s - BESIDE_TRIALS_S - 2 * PEER_S, LEAST_TRIALS_S) / 60
        limits = ("--network-minutes", f"{minutes:.3f}", "--peer-seconds", f"{PEER_S:.0f}")
        return (*self.arguments, *limits)


def _network(name: str, element_type: str) -> Part:
    only = ("--skip", "operators", "--skip", "products", "--network", name, "--type", element_type)
    least_s = BESIDE_TRIALS_S + LEAST_TRIALS_S
    return Part(f"{name} in {element_type}", only, limit_s=150.0 + 2 * PEER_S, least_s=least_s)


def _product(side: int) -> Part:
    only = ("--skip", "operators", "--skip", "networks", "--product", str(side), "--trials", "32")
    return Part(f"products of {side}", only, limit_s=90.0, least_s=40.0)


def _operator(name: str) -> Part:
    only = ("--skip", "products", "--skip", "networks", "--operator", name, "--trials", "32")
    return Part(f"{name} beside MetaSchedule", only, limit_s=180.0, least_s=90.0)


PARTS = (
    _network("resnet18", "float32"),
    _product(4096),
    _network("resnet50", "tf32"),
    _network("mobilenet_v2", "float32"),
    _network("bert_base", "tf32"),
    *(_network(name, "float32") for name in ("resnet50", "bert_base", "vit_b16", "dcgan")),
    *(_network(name, "tf32") for name in ("resnet18", "mobilenet_v2", "vit_b16", "dcgan")),
    *(
        _network(name, "float16")
        for name in ("resnet50", "bert_base", "vit_b16", "resnet18", "mobilenet_v2", "dcgan")
    ),
    *(_product(side) for side in (2048, 8192, 1024)),
    *(_operator(name) for name in ("GMM", "C2D", "DEP")),
)


def run(
    parts: Sequence[Part],
    seconds: float,
    more: Sequence[str],
    output: Output,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Run parts one after the other for at most `seconds`, each with the additional arguments `more`. Write
    all figures after each part. Return the exit code: 1 if a part failed or was cut off.

    A part for which too little time is left is skipped. Later, shorter ones may still run.
    """
    end_s = clock() + seconds
    found: list[Figure] = []
    left_out: list[str] = []
    failed: list[str] = []
    for part in parts:
        given_s = min(part.limit_s, end_s - clock() - STOP_S)
        if given_s < part.least_s:
            left_out.append(part.name)
            continue
        output.say(f"{part.name}: at most {given_s:.0f} s of {end_s - clock():.0f} s left")
        with tempfile.TemporaryDirectory(prefix="tunefarm-benchmark-") as folder:
            file = Path(folder) / "part.json"
            command = (*part.command(given_s), *more, "--json", str(file))
            problem = _run_command([sys.executable, "-m", "benchmarks.gpu", *command], given_s)
            if problem:
                output.fail(f"{part.name}: {problem}")
                failed.append(part.name)
            with contextlib.suppress(figures.FiguresError):  # the part wrote no figures
                found += figures.read(file).figures
        output.write(_all(found, left_out, failed))
    output.finish(_all(found, left_out, failed))
    return int(bool(failed))


def _all(found: Sequence[Figure], left_out: Sequence[str], failed: Sequence[str]) -> list[Figure]:
    """Return all figures. The means are over the networks of all parts, not of one."""
    single = [one for one in found if not one.subject.startswith(MEAN)]
    notes = [
        figure(name, len(names), "", note=", ".join(names))
        for name, names in (("parts left out for want of time", left_out), ("parts that failed", failed))
    ]
    real = [one for one in single if not one.name.startswith(MEANINGLESS)]
    return [*means_of(real), *single, *notes]


def _run_command(command: Sequence[str], timeout_s: float) -> str:
    """Run a part's command, and end all of its processes. Return why it is incomplete; "" if it is
    complete."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        return f"it was stopped after its {timeout_s:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return f"it ended with exit code {code}" if code else ""

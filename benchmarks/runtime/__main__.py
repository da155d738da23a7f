"""Measure what deploying a compiled model costs: sizes on disk, loading, overhead of a call, torch.compile.

    python -m benchmarks.runtime --json FILE

ResNet-18 is tuned on an embedded stack with an empty data folder; a model of one kernel is compiled there
without trials. The contestants take turns; nothing else should run on the machine. Figures of torch.compile
need PyTorch, and are left out where it isn't installed.
"""

from __future__ import annotations

import importlib.util
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from tunefarm_runtime.bundle import SOURCES, make_bundle

from benchmarks.arguments import command_parser, positive
from benchmarks.device_class import NATIVE
from benchmarks.networks.session import session
from benchmarks.results.figures import Aim, Figure, at_most, figure, number, ratio_figure
from benchmarks.results.output import Output
from benchmarks.runtime import installed
from benchmarks.runtime.calls import (
    BATCH,
    Program,
    build_program,
    load_s,
    only_kernel,
    time_batches,
)
from benchmarks.runtime.torch_resnet import TorchCompiled, compile_s, export
from benchmarks.timing.contestants import Arrays, Deployed, ModelFile, ProcessContestant, spawn_process
from benchmarks.timing.deviation import random_inputs
from benchmarks.timing.interleaved import Block, Contestant, Median, Timings, measure
from examples import make_models
from examples.networks.scale import FULL, TINY, Scale
from worker.settings import usable_cores

NAME = "benchmarks.runtime"
# The largest difference from the artifact's outputs, relative to the largest: the networks are the same.
TOLERANCE = 1e-3
KERNEL_INPUT = np.zeros((1, 16), np.float32)
FROM_C, FROM_PYTHON = "a call from C", "a call from Python"
KNOWN = "with known schedules"
TUNEFARM, INDUCTOR, INDUCTOR_TUNED = "torch.compile", "inductor", "inductor, max-autotune and freezing"


@dataclass(frozen=True)
class Plan:
    """The scale of ResNet-18, its trials, the threads of each contestant, and how often each is timed."""

    scale: Scale
    trials: int
    threads: int
    rounds: int
    loads: int
    compilations: int
    with_torch: bool


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 when something could not be measured."""
    parser = command_parser(NAME, __doc__, "a tiny ResNet without trials and few rounds, to try it out")
    parser.add_argument("--trials", type=positive, default=300, help="for ResNet-18 [300, quick none]")
    parser.add_argument("--threads", type=positive, default=usable_cores(), help="for everyone [all cores]")
    parser.add_argument("--rounds", type=positive, help="of interleaved blocks [20, quick 2]")
    args = parser.parse_args(argv)
    rounds = args.rounds or (2 if args.quick else 20)
    with_torch = importlib.util.find_spec("torch") is not None
    plan = Plan(FULL, args.trials, args.threads, rounds, 10, 3, with_torch)
    if args.quick:
        plan = replace(plan, scale=TINY, trials=0, loads=2, compilations=1)
    output = Output(NAME, argv, args.json, args.threads)
    if not with_torch:
        output.say("PyTorch isn't installed: the figures of torch.compile are left out")
        output.add("without PyTorch, so without the figures of torch.compile")
    return output.measure_each(["runtime"], lambda _, folder: run(plan, folder, output))


def run(plan: Plan, folder: Path, output: Output) -> list[Figure]:
    """Measure everything in an empty folder. Raises RuntimeError, CommandError and ClientError."""
    label = "ResNet-18" if plan.scale == FULL else "tiny ResNet"
    networks = _models(plan, folder)
    with session(folder / "data", plan.threads, NATIVE, output.console) as stack:
        resnet = stack.tune(networks["resnet"], plan.trials, folder / "resnet")
        stack.tune(networks["kernel"], 0, folder / "kernel")
    bundles = {name: folder / f"{name}-bundle" for name in networks}
    for name, bundle in bundles.items():
        make_bundle(folder / name, bundle)
    program = build_program(folder, bundles["resnet"])
    inputs = random_inputs([(one.shape, one.dtype) for one in resnet.manifest.inputs], 0)
    found = [
        *size_figures(installed.sizes(installed.install_runtime(folder)), bundles["resnet"]),
        *load_figures(label, [load_s(folder / "resnet", plan.threads) for _ in range(plan.loads)]),
    ]
    kernel = only_kernel(folder / "kernel/model.so")
    with ExitStack() as processes:
        calls: dict[str, Contestant] = {
            "C": processes.enter_context(Program(program, bundles["kernel"], plan.threads, BATCH)),
            "kernel": processes.enter_context(
                Program(program, bundles["kernel"], plan.threads, BATCH, kernel)
            ),
            "Python": processes.enter_context(
                ProcessContestant(Deployed(folder / "kernel"), plan.threads, [KERNEL_INPUT], time_batches)
            ),
        }
        found += kernel_figures(measure(calls, plan.rounds, Block()))
    with ExitStack() as processes:
        calls = {
            FROM_C: processes.enter_context(Program(program, bundles["resnet"], plan.threads, 1)),
            FROM_PYTHON: processes.enter_context(
                ProcessContestant(Deployed(folder / "resnet"), plan.threads, inputs)
            ),
        }
        found.append(_ratio(label, measure(calls, plan.rounds, Block()), FROM_C, FROM_PYTHON))
    if plan.with_torch:
        found += run_torch(label, plan, folder, inputs)
    return found


def _models(plan: Plan, folder: Path) -> dict[str, Path]:
    """Write the models: ResNet-18 from PyTorch where that is installed, and one of one kernel."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, KERNEL_INPUT.shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "kernel", values[:1], values[1:])
    kernel = folder / "kernel.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), kernel)
    if plan.with_torch:
        file = folder / "resnet.pt2"
        with spawn_process() as process:
            process.submit(export, plan.scale, file).result()
    else:
        file = folder / "resnet.onnx"
        onnx.save(make_models.make("resnet18", tiny=plan.scale == TINY), file)
    return {"resnet": file, "kernel": kernel}


def run_torch(label: str, plan: Plan, folder: Path, inputs: Arrays) -> list[Figure]:
    """Compare torch.compile with the artifact and with inductor. Raises RuntimeError if outputs differ."""

    def contestant(backend: str, cache: str, tuned: bool = False) -> TorchCompiled:
        (folder / cache).mkdir(exist_ok=True)
        return TorchCompiled(backend, plan.scale, folder / "data", folder / cache, tuned)

    compile_times: dict[str, list[float]] = {"tunefarm": [], "inductor": []}
    for round_ in range(plan.compilations):
        for backend, secs in compile_times.items():
            with spawn_process() as process:
                # Empty, so that inductor compiles everything.
                model = contestant(backend, f"cache-{round_}")
                secs.append(process.submit(compile_s, model, plan.threads, inputs).result())
    models: dict[str, ModelFile] = {
        "artifact": Deployed(folder / "resnet"),
        TUNEFARM: contestant("tunefarm", "cache-0"),
        INDUCTOR: contestant("inductor", "cache-0"),
        INDUCTOR_TUNED: contestant("inductor", "cache-tuned", tuned=True),
    }
    with ExitStack() as processes:
        running = {
            name: processes.enter_context(ProcessContestant(model, plan.threads, inputs))
            for name, model in models.items()
        }
        timings = measure(running, plan.rounds, Block())
        outputs = {name: each.outputs(inputs)[0] for name, each in running.items()}
    for name, found in outputs.items():
        wanted = outputs["artifact"]
        if np.abs(found - wanted).max() > TOLERANCE * np.abs(wanted).max():
            raise RuntimeError(f"{name} computes something else than the artifact")
    return torch_figures(label, compile_times, timings)


def size_figures(packages: Mapping[str, int], bundle: Path) -> list[Figure]:
    largest = sorted(packages, key=lambda name: -packages[name])[:3]
    note = ", ".join(f"{name} {number(packages[name] / 1e6)}" for name in largest)
    total = sum(packages.values()) / 1e6
    libraries = installed.size(bundle / "lib") / 1e6
    lines = len((SOURCES / "main.c").read_text().splitlines())
    runtime, in_c = "tunefarm-runtime beside NumPy", "bundle for C"
    return [
        figure("installed size", total, "MB", subject=runtime, aim=at_most(20), note=note),
        figure("size of the libraries", libraries, "MB", subject=in_c, aim=at_most(10)),
        figure("lines of the example", lines, "lines", subject=in_c, aim=at_most(60)),
    ]


def load_figures(label: str, secs: Sequence[tuple[float, float, float]]) -> list[Figure]:
    """`secs` has the seconds to import the runtime, to load, and of the first call, for each process."""
    imported, loaded, called = (_median([each * 1e3 for each in part]) for part in zip(*secs, strict=True))
    note = f"{number(imported.value)} ms to import, {number(called.value)} ms for the first call"
    return [
        figure(
            "time to load",
            loaded.value,
            "ms",
            subject=label,
            aim=at_most(100),
            spread=loaded.spread,
            note=note,
        )
    ]


def kernel_figures(timings: Mapping[str, Timings]) -> list[Figure]:
    """Timings of a model of one kernel, called from `Python` and `C`, and of its `kernel` alone."""
    kernel = timings["kernel"]
    note = f"the kernel alone: {number(kernel.latency_s.value * 1e6)} us"
    found = []
    for caller in ("Python", "C"):
        rounds = zip(timings[caller].blocks, kernel.blocks, strict=True)
        overhead = _median([(call - alone) * 1e6 for call, alone in rounds])
        one = figure(
            "overhead of a call",
            overhead.value,
            "us",
            subject="one kernel",
            condition=f"from {caller}",
            aim=at_most(10),
            spread=overhead.spread,
            note=note,
        )
        found.append(one)
    return found


def torch_figures(
    label: str, compile_times: Mapping[str, Sequence[float]], timings: Mapping[str, Timings]
) -> list[Figure]:
    compiled, other = _median(compile_times["tunefarm"]), statistics.median(compile_times["inductor"])
    return [
        figure(
            "time of torch.compile",
            compiled.value,
            "s",
            subject=label,
            condition=KNOWN,
            aim=at_most(20),
            spread=compiled.spread,
            note=f"inductor: {number(other)} s",
        ),
        _ratio(label, timings, TUNEFARM, "artifact", KNOWN, at_most(1.03)),
        *(_ratio(label, timings, TUNEFARM, peer, KNOWN) for peer in (INDUCTOR, INDUCTOR_TUNED)),
    ]


def _ratio(
    label: str,
    timings: Mapping[str, Timings],
    ours: str,
    theirs: str,
    condition: str = "",
    aim: Aim | None = None,
) -> Figure:
    """Return the latency of one contestant relative to another's."""
    ratio, other = timings[ours].ratio_to(timings[theirs]), timings[theirs].latency_s.value
    note = f"{theirs}: {number(other * 1e3)} ms"
    return ratio_figure(f"latency of {ours}", ratio, theirs, label, condition=condition, aim=aim, note=note)


def _median(values: Sequence[float]) -> Median:
    low, high = np.percentile(values, [10, 90])
    return Median(statistics.median(values), (float(low), float(high)))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that an embedded stack stops with us
    sys.exit(main())

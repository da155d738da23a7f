"""Tune small networks of the kinds that people bring: are they right, and how much of the time is tuned?

    python -m benchmarks.zoo --json FILE

Each is imported, verified, tuned with a few trials on one embedded stack and compared with ONNX Runtime. The
share of run time in tuned subgraphs is computed from the times that the device measured. A subgraph under a
schedule of the search is tuned; a subgraph under its fallback schedule isn't.
"""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

from benchmarks.arguments import command_parser, positive
from benchmarks.device_class import NATIVE
from benchmarks.networks.session import session
from benchmarks.results.figures import Figure, at_least, figure, number
from benchmarks.results.metrics import RIGHT_NETWORKS, TUNED_SHARE
from benchmarks.results.output import Output
from benchmarks.timing.contestants import Arrays, ProcessContestant, TvmLibrary
from benchmarks.timing.deviation import random_inputs
from compiler.importing.padding import valid_part
from compiler.packaging.artifact import Manifest
from examples import make_models, zoo
from system.command import CommandError
from tunefarm.client.client import ClientError
from worker.settings import usable_cores

NAME = "benchmarks.zoo"
# Of each kind of well-known network, the one that exercises the most.
WELL_KNOWN = ("efficientnet_b0", "dcgan", "vit_b16")
NETWORKS = (*zoo.ZOO, *WELL_KNOWN)
QUICK = ("detector", "decoder", "quantized", "half")
# Differences of values around one, by the coarsest rounding that a network goes through.
TOLERANCES = {"quantized": 0.051, "half": 2e-3, "brain_float": 2e-2}


@dataclass(frozen=True)
class Tuned:
    """A tuned network: the error in its outputs ("" if they are right), and its manifest."""

    name: str
    wrong: str
    manifest: Manifest

    @property
    def share(self) -> float:
        """The fraction of the subgraphs' time that is spent in tuned ones."""
        return sum(entry.share or 0.0 for entry in self.manifest.tasks if entry.source != "fallback")


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = command_parser(NAME, __doc__, f"only {', '.join(QUICK)}")
    parser.add_argument(
        "--network", action="append", choices=NETWORKS, dest="networks", help="only this one [all of them]"
    )
    parser.add_argument("--trials", type=positive, default=64, help="for every network [64]")
    parser.add_argument("--threads", type=positive, default=usable_cores(), help="[all cores]")
    args = parser.parse_args(argv)
    output = Output(NAME, argv, args.json, args.threads)
    done: list[Tuned] = []
    failed: dict[str, str] = {}
    names = args.networks or (QUICK if args.quick else NETWORKS)
    with (
        tempfile.TemporaryDirectory(prefix="tunefarm-benchmark-") as data,
        session(Path(data), args.threads, NATIVE, output.console) as stack,
    ):

        def measure_network(name: str, folder: Path) -> list[Figure]:
            model, file = make(name), folder / f"{name}.onnx"
            onnx.save(model, file)
            try:
                tuning = stack.tune(file, args.trials, folder / "tuned")
            except (CommandError, ClientError) as error:
                output.fail(f"{name}: {error}")
                failed[name] = str(error)
                return figures_of(done, failed)
            manifest = Manifest.from_json((tuning.folder / "manifest.json").read_text())
            inputs = random_inputs([(spec.shape, spec.dtype) for spec in manifest.inputs], 1)
            with ProcessContestant(TvmLibrary(tuning.library), args.threads, inputs) as running:
                found = running.outputs(inputs)
            feeds = {spec.name: array for spec, array in zip(manifest.inputs, inputs, strict=True)}
            done.append(Tuned(name, difference(name, found, expected(model, feeds)), manifest))
            return figures_of(done, failed)

        return output.measure_each(names, measure_network)


def make(name: str) -> onnx.ModelProto:
    return zoo.make(name) if name in zoo.ZOO else make_models.make(name, tiny=True)


def expected(model: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """Ask ONNX Runtime, or ONNX's reference for types that it has no kernels of."""
    options = SessionOptions()
    # Its kernels of bytes saturate on processors without VNNI.
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        runtime = InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except NoKernel:
        return list(ReferenceEvaluator(model).run(None, dict(feeds)))
    return list(runtime.run(None, dict(feeds)))


def difference(name: str, found: Arrays, wanted: Arrays) -> str:
    """Describe how outputs differ by more than rounding errors; "" if they don't."""
    for number_, (own, other) in enumerate(zip(found, wanted, strict=True)):
        own = valid_part(own, other)
        if not np.allclose(own, other, rtol=1e-3, atol=TOLERANCES.get(name, 1e-3)):
            return f"output {number_} differs by {np.abs(own - other).max():.3g}"
    return ""


def figures_of(done: Sequence[Tuned], failed: Mapping[str, str]) -> list[Figure]:
    """Return the figures of the networks that were tuned, and of all together; `failed` says why others
    weren't."""
    count = len(done) + len(failed)
    problems = [f"{each.name}: {each.wrong}" for each in done if each.wrong]
    problems += [f"{name}: {why}" for name, why in failed.items()]
    right = sum(not each.wrong for each in done)
    found = [
        figure(
            RIGHT_NETWORKS, right, f"of {count}", count=count, aim=at_least(count), note="; ".join(problems)
        )
    ]
    if not done:
        return found
    shares = {each.name: 100 * each.share for each in done}
    lowest = min(shares, key=lambda name: shares[name])
    found.append(
        figure(
            f"mean {TUNED_SHARE}",
            statistics.mean(shares.values()),
            "%",
            count=len(shares),
            aim=at_least(95),
            note=f"lowest: {number(shares[lowest])} % ({lowest})",
        )
    )
    for each in done:
        entries = each.manifest.tasks
        rest = [entry.name.split()[0] for entry in entries if entry.source == "fallback"]
        note = f"{len(entries)} subgraphs" + (f", not tuned: {', '.join(rest)}" if rest else "")
        note = note if entries else "the untuned build is faster, and was published"
        found.append(figure(TUNED_SHARE, shares[each.name], "%", subject=each.name, note=note))
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that an embedded stack stops with us
    sys.exit(main())

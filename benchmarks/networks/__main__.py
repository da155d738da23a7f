"""Tune or compile whole networks and measure them in turns with ONNX Runtime and OpenVINO.

    python -m benchmarks.networks --quick --json FILE
    python -m benchmarks.networks --compile --device-class avx2 --json FILE
    python -m benchmarks.networks --disturbed --json FILE

A network is tuned on an embedded stack with an empty data folder. The time runs from before the stack starts
until the module is unpacked. Latencies are measured afterwards, with the stack stopped. Without --quick,
MetaSchedule tunes the same subgraphs, and its model takes part in the turns. The figures go to FILE, and the
tuning curves to a file beside it. With --disturbed, a process computes for a third of the time, and published
latencies are compared with what users' processes see. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.arguments import command_parser, positive
from benchmarks.device_class import add_device_class
from benchmarks.networks import compiled, disturbed, tuned
from benchmarks.networks.compiled import CompiledNetwork
from benchmarks.networks.disturbed import DisturbedNetwork, DisturbedPlan
from benchmarks.networks.figures import figures_of_compiled, figures_of_disturbed, figures_of_tuned
from benchmarks.networks.plan import Plan
from benchmarks.networks.tuned import TunedNetwork, TuningPlan
from benchmarks.results.curves import CURVES
from benchmarks.results.figures import Figure
from benchmarks.results.output import Output
from benchmarks.timing.cpu_masking import LIBRARIES, MaskedPackage, mask
from benchmarks.timing.interleaved import Block
from examples.make_models import NETWORKS
from worker.settings import usable_cores

QUICK = ("resnet18", "mobilenet_v2")
FULL = (
    *("resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0", "convnext_t", "resnet3d_18", "dcgan"),
    *("bert_base", "vit_b16", "gpt2"),
)
COMPILED = ("resnet18", "mobilenet_v2", "resnet50", "efficientnet_b0", "vit_b16", "bert_base")
# The limit for each network that keeps --quick within ten minutes on a slow machine.
QUICK_MINUTES = 2.5
# Published latencies need no more tuning.
DISTURBED_MINUTES = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if a network could not be measured. Missed aims don't count."""
    args = _parser().parse_args(argv)
    output = Output("benchmarks.networks", argv, args.json, args.threads, args.device_class.without)
    with tempfile.TemporaryDirectory(prefix="tunefarm-benchmark-") as folder:
        masked = {}
        if args.device_class.without:
            output.say("masking instruction sets in copies of the peers")
            try:
                masked = {
                    name: mask(name, args.device_class.without, Path(folder) / name)
                    for name in filter(importlib.util.find_spec, LIBRARIES)
                }
            except (OSError, RuntimeError) as error:
                output.fail(error)
                return 1
        return (args.mode or _tune)(args, masked, output)


def _tune(args: argparse.Namespace, masked: Mapping[str, MaskedPackage], output: Output) -> int:
    done: list[TunedNetwork] = []

    def measure_network(name: str, folder: Path) -> list[Figure]:
        plan = TuningPlan(
            **vars(_plan(name, args, masked)),
            trials=args.trials,
            minutes=args.minutes or (QUICK_MINUTES if args.quick else None),
            peer_trials=args.peer_trials or (0 if args.quick else 128),
            # Twice the seconds of a MetaSchedule trial in earlier runs.
            peer_limit_s=3.0 * max(args.peer_trials or 0, 200),
            every_peer=args.every_peer,
        )
        done.append(tuned.run(plan, folder, output.console))
        CURVES.write([network.curve() for network in done], args.json)
        return figures_of_tuned(done)

    return output.measure_each(args.networks or (QUICK if args.quick else FULL), measure_network)


def _compile(args: argparse.Namespace, masked: Mapping[str, MaskedPackage], output: Output) -> int:
    done: list[CompiledNetwork] = []

    def measure_network(name: str, folder: Path) -> list[Figure]:
        done.append(compiled.run(_plan(name, args, masked), folder, output.console))
        return figures_of_compiled(done)

    return output.measure_each(args.networks or (QUICK if args.quick else COMPILED), measure_network)


def _disturb(args: argparse.Namespace, masked: Mapping[str, MaskedPackage], output: Output) -> int:
    done: list[DisturbedNetwork] = []

    def measure_network(name: str, folder: Path) -> list[Figure]:
        shared = vars(_plan(name, args, masked))
        plan = DisturbedPlan(**shared, trials=args.trials, minutes=args.minutes or DISTURBED_MINUTES)
        done.append(disturbed.run(plan, folder, output.console))
        return figures_of_disturbed(done)

    return output.measure_each(args.networks or (QUICK if args.quick else FULL), measure_network)


def _plan(name: str, args: argparse.Namespace, masked: Mapping[str, MaskedPackage]) -> Plan:
    return Plan(
        network=name,
        batch=args.batch,
        tiny=args.tiny,
        threads=args.threads,
        rounds=args.rounds or (10 if args.quick else 20),
        block=Block(),
        device_class=args.device_class,
        masked=masked,
    )


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "networks", __doc__, "ResNet-18 and MobileNet-V2 only, without MetaSchedule, in less than ten minutes"
    )
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--compile",
        dest="mode",
        action="store_const",
        const=_compile,
        help="without trials, then with one for each subgraph",
    )
    modes.add_argument(
        "--disturbed",
        dest="mode",
        action="store_const",
        const=_disturb,
        help="beside a process that uses a core for a third of the time; published latencies only",
    )
    parser.add_argument(
        "--network", action="append", choices=sorted(NETWORKS), dest="networks", help="only this one"
    )
    parser.add_argument("--batch", type=positive, default=1, help="images or texts at once [1]")
    add_device_class(parser)
    parser.add_argument("--trials", type=positive, default=300, help="for every network [300]")
    parser.add_argument(
        "--minutes",
        type=float,
        help="of tuning for every network [disturbed 0.5, quick 2.5, otherwise no limit]",
    )
    parser.add_argument(
        "--every-peer",
        action="store_true",
        help="PyTorch, torch.compile, zentorch and IREE too, where installed",
    )
    parser.add_argument("--threads", type=positive, default=usable_cores(), help="for everyone [all cores]")
    parser.add_argument("--rounds", type=positive, help="of interleaved blocks [20, quick 10]")
    parser.add_argument(
        "--peer-trials", type=positive, help="of MetaSchedule, which then takes turns too [128, quick none]"
    )
    parser.add_argument("--tiny", action="store_true", help="small networks of the same kind, to try it out")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that an embedded stack stops with us
    sys.exit(main())

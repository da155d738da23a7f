"""Tunes whole networks and measures them against TVM's untuned build, ONNX Runtime and MetaSchedule.

    python -m benchmarks.networks --quick --json FILE

The figures go to FILE, the curves of the latencies while tuning to a file beside it. Numbers mean something
only when nothing else runs on the machine.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import command_parser, positive
from benchmarks.networks import network
from benchmarks.networks.figures import figures_of
from benchmarks.networks.network import Measured, Plan
from benchmarks.results import curves
from benchmarks.results.output import Output
from benchmarks.timing.interleaved import Block
from examples.make_models import NETWORKS
from tunefarm.client import ClientError
from tunefarm.errors import CommandError
from worker.settings import usable_cores

QUICK = ("resnet18",)
FULL = ("resnet18", "mobilenet_v2", "resnet50")
# Keeps --quick within ten minutes on a machine that is far slower than hoped.
QUICK_MINUTES = 4.0


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 when a network could not be measured, whatever the figures say otherwise."""
    args = _parser().parse_args(argv)
    output = Output("networks", argv, args.json, args.threads)
    done: list[Measured] = []
    try:
        for name in args.networks or (QUICK if args.quick else FULL):
            with tempfile.TemporaryDirectory(prefix="tunefarm-benchmark-") as folder:
                done.append(network.run(_plan(name, args), Path(folder), output.console))
            found = [figure for measured in done for figure in figures_of(measured)]
            output.write(found)
            curves.write([measured.curve() for measured in done], curves.beside(args.json))
    except (CommandError, ClientError, OSError) as error:
        output.fail(error)
        return 1
    output.show(found)
    return 0


def _plan(name: str, args: argparse.Namespace) -> Plan:
    return Plan(
        network=name,
        tiny=args.tiny,
        trials=args.trials,
        minutes=QUICK_MINUTES if args.quick else None,
        threads=args.threads,
        rounds=args.rounds or (10 if args.quick else 20),
        block=Block(),
        peer_trials=args.peer_trials or (64 if args.quick else 128),
        peer_limit_s=220.0 if args.quick else 600.0,
    )


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("networks", __doc__, "ResNet-18 only, in less than ten minutes")
    parser.add_argument(
        "--network", action="append", choices=sorted(NETWORKS), dest="networks", help="only this one"
    )
    parser.add_argument("--trials", type=positive, default=300, help="for every network [300]")
    parser.add_argument("--threads", type=positive, default=usable_cores(), help="for everyone [all cores]")
    parser.add_argument("--rounds", type=positive, help="of interleaved blocks [20, quick 10]")
    parser.add_argument("--peer-trials", type=positive, help="of MetaSchedule [128, quick 64]")
    parser.add_argument("--tiny", action="store_true", help="small networks of the same kind, to try it out")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that an embedded stack stops with us
    sys.exit(main())

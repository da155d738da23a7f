"""Compare our search on a GPU with MetaSchedule, PyTorch and the GPU's peak, by operators and whole networks.

    python -m benchmarks.gpu --quick --json FILE
    python -m benchmarks.gpu --seconds 540 --json FILE

With --seconds, the most valuable parts run first, each with its own limit. The figures list the parts that
were left out.

Operators are computed in float32 without TF32. Matrix products are also computed in float16, bfloat16 and
TF32, and compared with the calibrated peak and with cuBLAS. Networks are tuned on an embedded stack with an
empty data folder. PyTorch runs with CUDA graphs, and networks also with torch.compile and by JAX. Figures are
written after each peer. Nothing else should run on the machine.

On the tests' stand-in for a GPU, every figure is marked as meaningless, and none is stored in docs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arguments import add_operator, command_parser, positive
from benchmarks.gpu import networks, operators, parts
from benchmarks.gpu.device import STORED, describe, detect, is_stand_in, without_aims
from benchmarks.gpu.networks import NetworkResult
from benchmarks.gpu.operators import PRODUCT_TYPES, PRODUCTS, OperatorResult, Plan, product_figures
from benchmarks.gpu.peers import missing
from benchmarks.results.figures import Figure
from benchmarks.results.output import Output
from benchmarks.results.searches import SEARCHES
from benchmarks.suite import OPERATORS
from benchmarks.timing.isolation import MeasurementFailed, measure_each, run_isolated
from core.device import Device
from system.command import CommandError
from tunefarm.client.client import ClientError
from worker.settings import usable_cores

NAME = "benchmarks.gpu"
PAPER = tuple(OPERATORS)[:12]
QUICK, QUICK_NETWORKS, QUICK_PRODUCTS = ("GMM", "C2D", "DEP"), ("mobilenet_v2",), (4096,)
TRIALS, QUICK_TRIALS, NETWORK_TRIALS, QUICK_NETWORK_TRIALS = 256, 64, 1000, 200
# Shapes that a stand-in computes in seconds.
TINY = {"GMM": (32, 32, 32), "C2D": (8, 8, 8, 8, 3, 1, 1), "DEP": (8, 8, 8, 3, 1, 1)}
TINY_SIDE = 32
# The assumed seconds of a trial of both engines together, for the first estimate of the remaining time.
TRIAL_S = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if a measurement failed. Missed aims don't count."""
    args = _parser().parse_args(argv)
    start_s = time.monotonic()
    output = Output(NAME, argv, args.json, args.threads)
    # The worker of an embedded stack calibrates the GPU by itself.
    calibrates = args.seconds is None and not {"operators", "products"} <= set(args.skip)
    try:
        device = run_isolated("this machine's GPU", args.threads, detect, calibrates)
    except MeasurementFailed as error:
        output.fail(f"{error}; a GPU is needed here, which nvidia-smi shows")
        return 1
    if is_stand_in(device):
        if STORED in args.json.resolve().parents:
            output.fail(f"this is a stand-in for a GPU, whose figures don't belong into {STORED.name}/")
            return 1
        output.say("this is a stand-in for a GPU: its figures MEAN NOTHING")
    output.add(describe(device))
    if args.seconds:
        more = ["--threads", str(args.threads), "--rounds", str(args.rounds), "--seed", str(args.seed)]
        more += ["--tiny"] if args.tiny else []
        return parts.run(parts.PARTS, args.seconds - (time.monotonic() - start_s), more, output)
    return _Run(args, device, output).run()


class _Run:
    def __init__(self, args: argparse.Namespace, device: Device, output: Output) -> None:
        self._args = args
        self._device = device
        self._output = output
        self._operators: list[OperatorResult] = []
        self._products: list[Figure] = []
        self._networks: dict[str, NetworkResult] = {}
        trials = args.trials or (QUICK_TRIALS if args.quick else TRIALS)
        shapes = TINY if args.tiny else {}
        self._plan = Plan(device, trials, args.threads, args.rounds, args.seed, shapes)

    def run(self) -> int:
        args, output, threads = self._args, self._output, self._args.threads
        for why in dict.fromkeys(filter(None, (missing(), *networks.absent_peers().values()))):
            output.say(f"{why}, and is not compared with")
        names = args.operators or (tuple(TINY) if args.tiny else QUICK if args.quick else PAPER)
        names = () if "operators" in args.skip else tuple(names)
        failures = measure_each(names, self._plan.trials * TRIAL_S, self._measure_operator, output)
        sides = args.products or (QUICK_PRODUCTS if args.quick else PRODUCTS)
        sides = () if "products" in args.skip else (TINY_SIDE,) if args.tiny else tuple(sides)
        for dtype, side in [(dtype, side) for dtype in PRODUCT_TYPES for side in sides]:
            output.say(f"{dtype} matrix product of {side}")
            try:
                name = f"the product of {side}"
                found = run_isolated(name, threads, operators.run_product, dtype, side, self._plan)
            except MeasurementFailed as error:
                output.fail(error)
                failures += 1
                continue
            self._products += product_figures(found, self._device)
            self._write()
        chosen = args.networks or (QUICK_NETWORKS if args.quick else networks.NETWORKS)
        for network in () if "networks" in args.skip else chosen:
            failures += self._measure_network(network)
        output.show(self._figures())
        return int(failures > 0)

    def _measure_operator(self, name: str) -> None:
        self._operators.append(run_isolated(name, self._args.threads, operators.run, name, self._plan))
        for error in self._operators[-1].errors:
            self._output.say(f"  {name}: {error}")
        self._write()

    def _measure_network(self, name: str) -> int:
        args = self._args
        trials = args.network_trials or (QUICK_NETWORK_TRIALS if args.quick else NETWORK_TRIALS)
        self._output.say(f"{name}: {trials} trials")
        try:
            with tempfile.TemporaryDirectory(prefix="tunefarm-benchmark-") as folder:
                given = networks.Plan(
                    name,
                    args.type,
                    trials,
                    args.network_minutes,
                    args.threads,
                    args.rounds,
                    args.tiny,
                    args.peer_seconds,
                )
                networks.run(given, Path(folder), self._output.console, self._keep)
        except (CommandError, ClientError, OSError, RuntimeError) as error:
            self._output.fail(f"{name}: {error}")
            return 1
        return 0

    def _keep(self, result: NetworkResult) -> None:
        self._networks[result.label] = result
        self._write()

    def _figures(self) -> list[Figure]:
        found = operators.figures_of(self._operators, self._plan.trials)
        return without_aims(
            [*found, *self._products, *networks.figures_of([*self._networks.values()])], self._device
        )

    def _write(self) -> None:
        """Write both files, so that an interrupted run keeps its measurements."""
        self._output.write(self._figures())
        SEARCHES.write([one for each in self._operators for one in each.searches], self._output.file)


def _parser() -> argparse.ArgumentParser:
    quick = f"{', '.join(QUICK)}, products of {QUICK_PRODUCTS[0]} and {QUICK_NETWORKS[0]} only, fewer trials"
    parser = command_parser(NAME, __doc__, quick)
    add_operator(parser)
    parser.add_argument(
        "--network",
        action="append",
        choices=networks.NETWORKS,
        dest="networks",
        help="only this one [all of them]",
    )
    parser.add_argument("--type", choices=networks.TYPES, default="float32", help="of networks [float32]")
    parser.add_argument(
        "--product", action="append", type=positive, dest="products", help=f"of this side {list(PRODUCTS)}"
    )
    parser.add_argument(
        "--skip",
        action="append",
        choices=("operators", "products", "networks"),
        default=[],
        help="leave these out",
    )
    parser.add_argument("--seconds", type=positive, help="do what fits into so many seconds, best first")
    parser.add_argument("--network-minutes", type=float, help="of trials for every network")
    parser.add_argument(
        "--peer-seconds",
        type=positive,
        default=600,
        help="in which a peer compiles a network, or is left out [600]",
    )
    parser.add_argument("--trials", type=positive, help=f"of every search [{TRIALS}, quick {QUICK_TRIALS}]")
    default = f"{NETWORK_TRIALS}, quick {QUICK_NETWORK_TRIALS}"
    parser.add_argument("--network-trials", type=positive, help=f"of every network [{default}]")
    parser.add_argument("--threads", type=positive, default=usable_cores(), help="that build [all cores]")
    parser.add_argument("--rounds", type=positive, default=10, help="of interleaved finals [10]")
    parser.add_argument("--seed", type=int, default=0, help="of everything that both engines draw [0]")
    parser.add_argument("--tiny", action="store_true", help="small shapes and networks, to try it out")
    return parser

"""Tune decoders that keep their cache, and compare their tokens per second with other runtimes.

    python -m benchmarks.decoders --quick --json FILE

All run the same weights in turns, each in its own process: a whole prompt (prefill), then one token at a time
(decode). `llama-4-bit` is a GGUF file with Q4_0 for llama.cpp; others run an ONNX file with MatMulNBits.
Peers that aren't installed are left out: onnxruntime-genai, openvino, llama-cpp-python with gguf.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.arguments import command_parser, positive
from benchmarks.decoders.four_bits import with_four_bits, write_gguf
from benchmarks.decoders.runtimes import LLAMA_CPP, PEERS, TUNEFARM, Process, Round, Runtime
from benchmarks.results.figures import Figure, at_least, figure, ratio_figure
from benchmarks.results.output import Output
from benchmarks.timing.interleaved import Median, Timings
from examples.networks.decoders import DecoderScale, gpt2, llama
from tunefarm import tune
from worker.settings import usable_cores

NAME = "benchmarks.decoders"
# Decoders of 6 million and of 170 million parameters.
SMALL = DecoderScale(words=4000, features=256, heads=8, grouped_heads=4, size=32, layers=6, longest=512)
LARGE = DecoderScale(words=32000, features=1024, heads=16, grouped_heads=4, size=64, layers=12, longest=512)
PREFILLED, DECODED, CACHED = 128, 64, 256
# A pause between turns, in which threads that spin after their work go to sleep.
REST_S = 0.1
# The least ratio of our tokens per second to a peer's.
AIM = at_least(1.0)
NETWORKS = ("llama", "llama-4-bit", "gpt2")


@dataclass(frozen=True)
class Rates:
    """The seconds of each round's prompt and answer, and the most memory of the process."""

    prefill: Timings
    decode: Timings
    peak_bytes: int


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 when a network could not be measured."""
    parser = command_parser(NAME, __doc__, "llamas of 6 million parameters, 100 trials, 7 rounds")
    parser.add_argument("--network", action="append", choices=NETWORKS, dest="networks")
    parser.add_argument("--trials", type=positive, help="for all sizes together [1000, quick 100]")
    parser.add_argument("--rounds", type=positive, help="of a prompt and an answer [15, quick 7]")
    args = parser.parse_args(argv)
    trials = args.trials or (100 if args.quick else 1000)
    rounds = args.rounds or (7 if args.quick else 15)
    scale = SMALL if args.quick else LARGE
    output = Output(NAME, argv, args.json, usable_cores())
    found: list[Figure] = []

    def measure_network(name: str, folder: Path) -> list[Figure]:
        file, threads = folder / f"{name}.onnx", usable_cores()
        runtimes = _write(name, file, scale)
        for one in (*PEERS, LLAMA_CPP):
            if one not in runtimes:
                output.say(f"{name}: {one.name} is left out: it isn't installed or doesn't read the network")
        sizes = {"sequence": (1, 128), "past": (CACHED,)}
        tuned = tune(file, trials=trials, shapes=sizes, output=folder / "tuned", data=folder / "data")
        with ExitStack() as stack:
            runs = {
                one: stack.enter_context(
                    Process(one, tuned.output if one is TUNEFARM else file, scale, threads)
                )
                for one in (TUNEFARM, *runtimes)
            }
            found.extend(figures_of(name, measure(runs, rounds, scale.words)))
        return found

    return output.measure_each(args.networks or NETWORKS[: 2 if args.quick else None], measure_network)


def _write(name: str, file: Path, scale: DecoderScale) -> list[Runtime]:
    """Write a network's files, and return the installed peers that read them."""
    runtimes = [one for one in PEERS if one.is_installed]
    if name == "gpt2":
        file.write_bytes(gpt2(scale=scale))
        return [one for one in runtimes if one.module != "onnxruntime_genai"]  # it needs inputs of positions
    model = llama(scale=scale)
    file.write_bytes(with_four_bits(model) if name == "llama-4-bit" else model)
    if name == "llama-4-bit" and LLAMA_CPP.is_installed:
        write_gguf(file.with_suffix(".gguf"), model, scale)
        runtimes.append(LLAMA_CPP)
    return runtimes


def measure(runs: Mapping[Runtime, Process], rounds: int, words: int) -> dict[str, Rates]:
    """Run decoders in turns, and return the rates of each. The first is compared with all others. The prompt
    has random tokens from a vocabulary of `words`.

    Raises RuntimeError if the decoders' logits differ.
    """
    prompt = np.random.default_rng(0).integers(0, words, (1, PREFILLED))
    done: dict[Runtime, list[Round]] = {runtime: [] for runtime in runs}
    order = list(runs)
    for number in range(rounds + 1):
        order.append(order.pop(0))
        for runtime in order:
            one = runs[runtime].run(prompt, DECODED)
            time.sleep(REST_S)
            if number:  # the first round warms up
                done[runtime].append(one)
    first, *others = done
    right = done[first][-1].logits
    for other in others:
        if np.abs(right - done[other][-1].logits).max() > other.tolerance * np.abs(right).max():
            raise RuntimeError(f"the logits of {first.name} and {other.name} differ")
    return {
        runtime.name: Rates(
            Timings(tuple(one.prefill_s for one in turns)),
            Timings(tuple(one.decode_s for one in turns)),
            runs[runtime].peak_bytes(),
        )
        for runtime, turns in done.items()
    }


def figures_of(name: str, rates: Mapping[str, Rates]) -> list[Figure]:
    """Return each runtime's rates and memory, and the ratios of tunefarm's rates to the others'."""
    own = rates[TUNEFARM.name]
    found = []
    for runtime, one in rates.items():
        for what, tokens, timings, ours in (
            ("prefill", PREFILLED, one.prefill, own.prefill),
            ("decode", DECODED, one.decode, own.decode),
        ):
            rate = _times(timings.per_s, tokens)
            subject, condition = f"{name}, {runtime}", f"{PREFILLED} tokens" if what == "prefill" else ""
            found.append(
                figure(
                    f"{what} rate",
                    rate.value,
                    "tokens/s",
                    subject=subject,
                    condition=condition,
                    spread=rate.spread,
                )
            )
            if one is not own:
                ratio = timings.ratio_to(ours)
                found.append(ratio_figure(f"{what} rate", ratio, runtime, name, condition=condition, aim=AIM))
        found.append(figure("peak memory", one.peak_bytes / 1e6, "MB", subject=f"{name}, {runtime}"))
    return found


def _times(median: Median, factor: float) -> Median:
    low, high = median.spread
    return Median(median.value * factor, (low * factor, high * factor))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that an embedded stack stops with us
    sys.exit(main())

"""Tune decoders that keep their cache, and compare their tokens per second with other runtimes.

    python -m benchmarks.decoders --quick --json FILE

All run the same weights in turns, each in its own process: a whole prompt (prefill), then one token at a time
(decode). A network of 4 bits is a GGUF file with Q4_0 for llama.cpp; others run an ONNX file with MatMulNBits
that rounds activations to 8 bits. ONNX Runtime also runs it without rounding. Peers that aren't installed are
left out: onnxruntime-genai, openvino, llama-cpp-python with gguf.
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
from benchmarks.decoders.four_bits import BYTES, FourBits, with_accuracy_level, write_gguf
from benchmarks.decoders.runtimes import IN_FLOATS, LLAMA_CPP, PEERS, TUNEFARM, Process, Round, Runtime
from benchmarks.results.figures import Figure, at_least, figure, ratio_figure
from benchmarks.results.output import Output
from benchmarks.timing.interleaved import Median, Timings
from examples.networks.decoders import DecoderScale, gpt2, llama
from tunefarm import tune
from worker.settings import usable_cores

NAME = "benchmarks.decoders"
# Decoders of 6 million, of 170 million and of a billion parameters.
SMALL = DecoderScale(words=4000, features=256, heads=8, grouped_heads=4, size=32, layers=6, longest=512)
LARGE = DecoderScale(words=32000, features=1024, heads=16, grouped_heads=4, size=64, layers=12, longest=512)
BILLION = DecoderScale(
    words=32000, features=2048, heads=32, grouped_heads=8, size=64, layers=26, longest=512, spread=0.5
)
PREFILLED, DECODED, CACHED = 128, 64, 256
# A pause between turns, in which threads that spin after their work go to sleep.
REST_S = 0.1
# How much logits may differ, and how much they may if some contestants round activations to 8 bits.
TOLERANCE, BYTES_TOLERANCE = 1e-2, 0.2
# The least ratio of our tokens per second to a peer's.
AIM = at_least(1.0)
NETWORKS = ("llama", "llama-4-bit", "gpt2")
BILLION_NAME = "llama-1b-4-bit"


@dataclass(frozen=True)
class Rates:
    """The seconds of each round's prompt and answer, and the most memory of the process."""

    prefill: Timings
    decode: Timings
    peak_bytes: int


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 when a network could not be measured."""
    parser = command_parser(NAME, __doc__, "llamas of 6 million parameters, 100 trials, 7 rounds")
    parser.add_argument("--network", action="append", choices=(*NETWORKS, BILLION_NAME), dest="networks")
    parser.add_argument("--trials", type=positive, help="for all sizes together [1000, quick 100]")
    parser.add_argument("--rounds", type=positive, help="of a prompt and an answer [15, quick 7]")
    args = parser.parse_args(argv)
    trials = args.trials or (100 if args.quick else 1000)
    rounds = args.rounds or (7 if args.quick else 15)
    output = Output(NAME, argv, args.json, usable_cores())
    found: list[Figure] = []

    def measure_network(name: str, folder: Path) -> list[Figure]:
        scale = BILLION if name == BILLION_NAME else SMALL if args.quick else LARGE
        file, threads = folder / f"{name}.onnx", usable_cores()
        files = _write(name, file, scale)
        tolerance = BYTES_TOLERANCE if IN_FLOATS in files else TOLERANCE
        for one in (*PEERS, LLAMA_CPP):
            if one not in files:
                output.say(f"{name}: {one.name} is left out: it isn't installed or doesn't read the network")
        sizes = {"sequence": (1, 128), "past": (CACHED,)}
        tuned = tune(file, trials=trials, shapes=sizes, output=folder / "tuned", data=folder / "data")
        with ExitStack() as stack:
            runs = {
                one: stack.enter_context(Process(one, each, scale, threads))
                for one, each in {TUNEFARM: tuned.output, **files}.items()
            }
            found.extend(figures_of(name, measure(runs, rounds, scale.words, tolerance)))
        return found

    return output.measure_each(args.networks or NETWORKS[: 2 if args.quick else None], measure_network)


def _write(name: str, file: Path, scale: DecoderScale) -> dict[Runtime, Path]:
    """Write a network's files. Return the installed peers that run it, and the file of each."""
    files = {one: file for one in PEERS if one.is_installed}
    if name == "gpt2":
        file.write_bytes(gpt2(scale=scale))
        # onnxruntime-genai needs inputs of positions.
        return {one: file for one in files if one.module != "onnxruntime_genai"}
    if name == "llama":
        file.write_bytes(llama(scale=scale))
        return files
    model = llama(scale=scale, network=FourBits)
    file.write_bytes(with_accuracy_level(model, BYTES))
    if IN_FLOATS.is_installed:
        files[IN_FLOATS] = file.with_name(f"{name}-in-floats.onnx")
        files[IN_FLOATS].write_bytes(model)
    if LLAMA_CPP.is_installed:
        files[LLAMA_CPP] = file.with_suffix(".gguf")
        write_gguf(files[LLAMA_CPP], model, scale)
    return files


def measure(
    runs: Mapping[Runtime, Process], rounds: int, words: int, tolerance: float = TOLERANCE
) -> dict[str, Rates]:
    """Run decoders in turns, and return the rates of each. The first is compared with all others. The prompt
    has random tokens from a vocabulary of `words`.

    Raises RuntimeError if the decoders' logits differ by more than `tolerance`, relative to the largest.
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
        if np.abs(right - done[other][-1].logits).max() > tolerance * np.abs(right).max():
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

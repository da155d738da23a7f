"""Tune decoders that keep their cache, and compare their tokens per second with ONNX Runtime.

    python -m benchmarks.decoders --quick --json FILE

Both run the same file, in turns: a whole prompt (prefill), then one token at a time (decode). ONNX Runtime
takes the cache as inputs and returns it.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tunefarm_runtime
from numpy.typing import NDArray

from benchmarks.arguments import command_parser, positive
from benchmarks.results.figures import Figure, at_least, figure
from benchmarks.results.output import Output
from examples.networks.decoders import DecoderScale, gpt2, llama
from tunefarm import tune
from worker.settings import usable_cores

NAME = "benchmarks.decoders"
# Decoders of 6 million and of 170 million parameters.
SMALL = DecoderScale(words=4000, features=256, heads=8, grouped_heads=4, size=32, layers=6, longest=512)
LARGE = DecoderScale(words=32000, features=1024, heads=16, grouped_heads=4, size=64, layers=12, longest=512)
PREFILLED, DECODED, CACHED = 128, 64, 256
# The least ratio of our tokens per second to ONNX Runtime's.
AIM = at_least(1.0)
Array = NDArray[Any]


NETWORKS: Mapping[str, Callable[[DecoderScale], bytes]] = {
    "llama": lambda scale: llama(scale=scale),
    "gpt2": lambda scale: gpt2(scale=scale),
}


@dataclass(frozen=True)
class Rates:
    """The tokens per second in each round."""

    prefill: tuple[float, ...]
    decode: tuple[float, ...]


class Step(Protocol):
    """A decoder. A call appends tokens and returns their logits; `reset` empties the cache."""

    def reset(self) -> None: ...
    def __call__(self, tokens: Array) -> Array: ...


class Compiled:
    """The compiled decoder."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._model = tunefarm_runtime.load(folder, threads=threads)

    def reset(self) -> None:
        self._model.reset()

    def __call__(self, tokens: Array) -> Array:
        return np.asarray(self._model.step(tokens)[0])


class OnnxRuntime:
    """The model in ONNX Runtime, with a growing cache. `held` has the inputs that stay the same."""

    def __init__(self, file: Path, threads: int, held: Mapping[str, Array] | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self._outputs = [one.name for one in self._session.get_outputs()]
        self._held = held or {}
        self._past: dict[str, Array] = {}
        self.reset()

    def reset(self) -> None:
        self._past = {
            one.name: np.zeros([0 if isinstance(extent, str) else extent for extent in one.shape], np.float32)
            for one in self._session.get_inputs()
            if one.name.startswith("past")
        }

    def __call__(self, tokens: Array) -> Array:
        before = next(iter(self._past.values())).shape[2]
        total = before + tokens.shape[1]
        derived = {
            "input_ids": tokens,
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(before, total)[None],
        }
        names = {one.name for one in self._session.get_inputs()}
        feed = {
            **self._past,
            **self._held,
            **{name: value for name, value in derived.items() if name in names},
        }
        found = dict(zip(self._outputs, self._session.run(None, feed), strict=True))
        self._past = {name: found[name.replace("past_key_values", "present")] for name in self._past}
        return np.asarray(found["logits"])


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 when a network could not be measured."""
    parser = command_parser(NAME, __doc__, "6 million parameters, 200 trials, 5 rounds")
    parser.add_argument("--network", action="append", choices=list(NETWORKS), dest="networks")
    parser.add_argument("--trials", type=positive, help="for all sizes together [1000, quick 200]")
    parser.add_argument("--rounds", type=positive, help="of a prompt and an answer [10, quick 5]")
    args = parser.parse_args(argv)
    trials = args.trials or (200 if args.quick else 1000)
    rounds = args.rounds or (5 if args.quick else 10)
    output = Output(NAME, argv, args.json, usable_cores())
    found: list[Figure] = []

    def measure_network(name: str, folder: Path) -> list[Figure]:
        file = folder / f"{name}.onnx"
        file.write_bytes(NETWORKS[name](SMALL if args.quick else LARGE))
        sizes = {"sequence": (1, 32), "past": (CACHED,)}
        tuned = tune(file, trials=trials, shapes=sizes, output=folder / "tuned", data=folder / "data")
        threads = usable_cores()
        runs: dict[str, Step] = {
            "tunefarm": Compiled(tuned.output, threads),
            "ONNX Runtime": OnnxRuntime(file, threads),
        }
        found.extend(figures_of(name, measure(runs, rounds, SMALL.words)))
        return found

    return output.measure_each(args.networks or NETWORKS, measure_network)


def measure(runs: Mapping[str, Step], rounds: int, words: int) -> dict[str, Rates]:
    """Run decoders in turns, and return the rates of each. The prompt has random tokens from a vocabulary of
    `words`.

    Raises ValueError if the decoders' logits differ.
    """
    prompt = np.random.default_rng(0).integers(0, words, (1, PREFILLED))
    rates: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in runs}
    last: dict[str, Array] = {}
    for number in range(rounds + 1):
        for name, step in runs.items():
            step.reset()
            begin = time.perf_counter()
            logits = step(prompt)
            middle = time.perf_counter()
            for token in prompt[0, :DECODED]:
                logits = step(np.array([[token]]))
            end = time.perf_counter()
            last[name] = logits[0, -1]
            if number:  # the first round warms up
                rates[name][0].append(PREFILLED / (middle - begin))
                rates[name][1].append(DECODED / (end - middle))
    right, *others = last.values()
    for other in others:
        if np.abs(right - other).max() > 1e-2 * np.abs(right).max():
            raise ValueError("the decoder's logits differ from ONNX Runtime's")
    return {name: Rates(tuple(prefill), tuple(decode)) for name, (prefill, decode) in rates.items()}


def figures_of(name: str, rates: Mapping[str, Rates]) -> list[Figure]:
    found = []
    own, peer = rates["tunefarm"], rates["ONNX Runtime"]
    for what, ours, theirs in (("prefill", own.prefill, peer.prefill), ("decode", own.decode, peer.decode)):
        ratio = float(np.median([one / other for one, other in zip(ours, theirs, strict=True)]))
        note = f"{np.median(ours):.4g} tokens/s, ONNX Runtime {np.median(theirs):.4g}"
        found.append(
            figure(f"{what} rate", ratio, "x", peer="ONNX Runtime", subject=name, aim=AIM, note=note)
        )
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that an embedded stack stops with us
    sys.exit(main())

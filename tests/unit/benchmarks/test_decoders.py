"""Rates of decoders, and how they are measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.decoders import Array, OnnxRuntime, Rates, figures_of, measure
from examples.networks.decoders import DecoderScale, gpt2


def test_rates_are_held_against_onnx_runtime() -> None:
    own, peer = Rates((300.0, 330.0), (30.0, 20.0)), Rates((200.0, 220.0), (40.0, 40.0))
    prefill, decode = figures_of("llama", {"tunefarm": own, "ONNX Runtime": peer})
    assert prefill.name == "llama: prefill rate relative to ONNX Runtime"
    assert (prefill.value, prefill.reached) == (1.5, True)
    assert (decode.value, decode.reached, decode.note) == (0.625, False, "25 tokens/s, ONNX Runtime 40")


class Wrong:
    def reset(self) -> None: ...

    def __call__(self, tokens: Array) -> Array:
        return np.ones((1, tokens.shape[1], 50), np.float32)


def test_what_computes_something_else_has_no_rates(tmp_path: Path) -> None:
    file = tmp_path / "gpt2.onnx"
    file.write_bytes(gpt2(scale=DecoderScale(longest=256)))
    right = OnnxRuntime(file, 1)
    found = measure({"tunefarm": right, "ONNX Runtime": right}, 2, 50)
    assert [len(found[name].decode) for name in found] == [2, 2]
    with pytest.raises(ValueError, match="the decoder's logits differ from ONNX Runtime's"):
        measure({"tunefarm": Wrong(), "ONNX Runtime": right}, 1, 50)

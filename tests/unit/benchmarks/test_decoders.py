"""Rates of decoders, how they are measured, and equal weights of 4 bits in both formats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks.decoders.__main__ import Rates, figures_of, measure
from benchmarks.decoders.four_bits import BYTES, FLOATS, ZERO, FourBits, quantized, with_accuracy_level
from benchmarks.decoders.runtimes import PEERS, Array, OnnxRuntime, Process, Runtime
from benchmarks.timing.interleaved import Timings
from examples.networks.decoders import DecoderScale, llama

SCALE = DecoderScale(words=64, features=32, longest=256)


def test_rates_are_compared_with_every_peer() -> None:
    own = Rates(Timings((0.128, 0.064)), Timings((1.0, 1.0)), 50_000_000)
    peer = Rates(Timings((0.256, 0.128)), Timings((0.5, 0.5)), 90_000_000)
    found = {one.name: one for one in figures_of("llama", {"tunefarm": own, "ONNX Runtime": peer})}
    prefill = found["llama: prefill rate relative to ONNX Runtime, 128 tokens"]
    assert (prefill.value, prefill.reached) == (2, True)
    decode = found["llama: decode rate relative to ONNX Runtime"]
    assert (decode.value, decode.reached) == (0.5, False)
    assert found["llama, ONNX Runtime: decode rate"].value == 128
    assert found["llama, tunefarm: peak memory"].value == 50


class Wrong:
    def __init__(self, *_: object) -> None: ...

    def reset(self) -> None: ...

    def __call__(self, tokens: Array) -> Array:
        return np.ones((1, tokens.shape[1], SCALE.words), np.float32)


def test_a_contestant_with_wrong_outputs_has_no_rates(tmp_path: Path) -> None:
    file = tmp_path / "llama.onnx"
    file.write_bytes(llama(scale=SCALE))
    right = PEERS[0]
    with Process(right, file, SCALE, 1) as one, Process(replace(right, name="other"), file, SCALE, 1) as two:
        found = measure({right: one, replace(right, name="other"): two}, 2, SCALE.words)
        assert [len(rates.decode.blocks) for rates in found.values()] == [2, 2]
        assert all(rates.peak_bytes > 1 << 20 for rates in found.values())
        wrong = Runtime("wrong", "numpy", Wrong)
        with (
            Process(wrong, file, SCALE, 1) as three,
            pytest.raises(RuntimeError, match="the logits of ONNX Runtime and wrong differ"),
        ):
            measure({right: one, wrong: three}, 1, SCALE.words)


def test_four_bits_are_the_same_in_both_formats(tmp_path: Path) -> None:
    model = llama(scale=SCALE)
    weights = {one.name: one for one in onnx.load_from_string(model).graph.initializer}
    weight = numpy_helper.to_array(weights["blk.0.ffn_down.weight"])
    codes, scales = quantized(weight.T)
    rows = ((codes.astype(np.float32) - ZERO) * scales[..., None]).reshape(weight.T.shape)
    assert np.abs(rows - weight.T).max() < 0.15 * np.abs(weight).max()
    # llama.cpp quantizes the rounded rows again, which must not change them.
    again, same = quantized(rows)
    np.testing.assert_array_equal(again, codes)
    np.testing.assert_array_equal(same, scales)
    (file := tmp_path / "four.onnx").write_bytes(llama(scale=SCALE, network=FourBits))
    (rounded := tmp_path / "rounded.onnx").write_bytes(_with_rounded_weights(model))
    tokens = np.array([[1, 2, 3]])
    found, wanted = (OnnxRuntime(one, SCALE, 1)(tokens) for one in (file, rounded))
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


def test_files_differ_only_in_the_rounding_of_activations() -> None:
    floats = llama(scale=SCALE, network=FourBits)
    rounded = with_accuracy_level(floats, BYTES)
    levels = [
        attribute.i
        for node in onnx.load_from_string(rounded).graph.node
        if node.op_type == "MatMulNBits"
        for attribute in node.attribute
        if attribute.name == "accuracy_level"
    ]
    assert set(levels) == {BYTES}
    assert with_accuracy_level(rounded, FLOATS) == floats


def _with_rounded_weights(model: bytes) -> bytes:
    proto = onnx.load_from_string(model)
    products = {node.input[1] for node in proto.graph.node if node.op_type == "MatMul"}
    for one in proto.graph.initializer:
        if one.name in products:
            weight = numpy_helper.to_array(one)
            codes, scales = quantized(weight.T)
            rows = ((codes.astype(np.float32) - ZERO) * scales[..., None]).reshape(weight.T.shape)
            one.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(rows.T), one.name))
    return bytes(proto.SerializeToString())

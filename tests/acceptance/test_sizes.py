"""Networks with dynamic input sizes on the real stack: tuned for several sizes, run at sizes between them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tunefarm_runtime import NoSuchSize, load

from benchmarks.decoders.runtimes import OnnxRuntime
from examples.networks.decoders import TINY, llama
from tests.acceptance.commands import done, tunefarm
from tests.onnx_models import fully_convolutional, masked_attention

pytestmark = [pytest.mark.slow_lane(seconds=33), pytest.mark.timeout(600)]


def test_a_transformer_is_tuned_in_several_sizes_and_padded_between_them(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "net.onnx").write_bytes(masked_attention("batch", "tokens"))
    flags = ["--shape", "tokens=8,32", "--batch", 2, "--trials", 32, "--json"]
    results = json.loads(done(tunefarm(["tune", "net.onnx", *flags], environment, tmp_path)))
    jobs = [result["job"] for result in results]
    assert [job["shapes"]["mask"] for job in jobs] == [[2, 8], [2, 32]]
    assert [job["members"] for job in jobs] == [[job["id"] for job in jobs]] * 2
    assert {job["objective"] for job in jobs} == {"speedup"}
    assert sum(job["trials_done"] for job in jobs) >= 32
    for size in ("tokens=8", "tokens=32"):
        manifest = json.loads((tmp_path / "net-tuned" / size / "manifest.json").read_text())
        assert manifest["untuned_s"]
        assert manifest["tuned_s"]

    model = load(tmp_path / "net-tuned", pad=True)
    reference = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    for tokens in (3, 8, 20, 32):
        inputs = np.random.default_rng(1).standard_normal((2, tokens, 16), dtype=np.float32)
        mask = np.ones((2, tokens), np.float32)
        (found,) = model(inputs, mask)
        (wanted,) = reference.run(None, {"input": inputs, "mask": mask})
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)

    # Later sizes and jobs reuse the measurements.
    again = ["compile", "net.onnx", "--shape", "tokens=8,32", "--batch", 2, "--output", "again", "--json"]
    compiled = json.loads(done(tunefarm(again, environment, tmp_path)))
    assert [result["job"]["trials_done"] for result in compiled] == [0, 0]
    assert len(load(tmp_path / "again").sizes) == 2


def test_a_convolutional_network_is_tuned_in_several_sizes(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "net.onnx").write_bytes(fully_convolutional("side"))
    flags = ["--shape", "side=8,16", "--trials", 16, "--json"]
    done(tunefarm(["tune", "net.onnx", *flags], environment, tmp_path))
    model = load(tmp_path / "net-tuned")
    reference = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    for side in (8, 16):
        image = np.random.default_rng(1).standard_normal((1, 3, side, side), dtype=np.float32)
        for found, wanted in zip(model(image), reference.run(None, {"input": image}), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    with pytest.raises(NoSuchSize, match=r"compiled for inputs of \(1, 3, 8, 8\); \(1, 3, 16, 16\)"):
        model(np.zeros((1, 3, 12, 12), np.float32))


def test_a_decoder_is_tuned_with_its_cache_in_place(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "llama.onnx").write_bytes(llama())
    flags = ["--shape", "sequence=1", "--shape", "past=8,16", "--trials", 8, "--json"]
    results = json.loads(done(tunefarm(["tune", "llama.onnx", *flags], environment, tmp_path)))
    assert all(result["job"]["onnxruntime"]["ratio"] for result in results)
    model, reference = load(tmp_path / "llama-tuned"), OnnxRuntime(tmp_path / "llama.onnx", TINY, 1)
    for token in np.random.default_rng(0).integers(0, TINY.words, 16):
        np.testing.assert_allclose(model.step(token)[0], reference(np.array([[token]])), rtol=1e-3, atol=1e-4)
    done(tunefarm(["verify", "llama-tuned", "--against", "llama.onnx"], environment, tmp_path))

"""Decoders keep their cache, and compute the outputs of ONNX Runtime with a growing cache."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tunefarm_runtime import LoadError, RunError, load

from benchmarks.decoders.four_bits import FourBits
from benchmarks.decoders.runtimes import OnnxRuntime
from examples.networks.decoders import DECODERS, TINY, llama
from tests.compiled_models import compile_decoder
from tests.marks import slow_lane_except
from tunefarm.comparison import contestants
from tunefarm.comparison.turns import compare

Array = NDArray[Any]
AUDIO = 6
STATES = np.random.default_rng(5).standard_normal((1, AUDIO, TINY.features), np.float32)
NETWORKS = DECODERS | {"llama of 4 bits": lambda: llama(network=FourBits)}
HELD = {"whisper": {"encoder_hidden_states": STATES}}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_lane_except(sorted(NETWORKS), "llama of 4 bits", seconds=6))
def test_decoding_continues_correctly_in_the_next_size(name: str, tmp_path: Path) -> None:
    data, held = NETWORKS[name](), HELD.get(name, {})
    sizes = {"sequence": (1, 4), "past": (8, 16), **({"audio": (AUDIO,)} if held else {})}
    model = load(compile_decoder(data, tmp_path, sizes, scheduled=True))
    assert [one.name for one in model.outputs] == ["logits"]
    rng = np.random.default_rng(0)
    for _ in range(2):
        model.reset(**held)
        assert not model._decoder._arrays  # type: ignore[union-attr]  # a reset frees larger buffers
        reference = OnnxRuntime(tmp_path / "decoder.onnx", TINY, 1, held)
        for count in (3, 1, 1, 6, 1, 1, 1, 2):  # the first bucket ends within the 6
            tokens = rng.integers(0, TINY.words, count).tolist()
            (found,) = model.step(tokens if count > 1 else tokens[0])
            wanted = reference(np.array([tokens]))
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
        model.rewind(15)
        np.testing.assert_allclose(model.step(tokens[-1:])[0], wanted[:, -1:], rtol=1e-3, atol=1e-4)
        with pytest.raises(RunError, match="the cache can't be rewound to 17 tokens: give 0 to 16"):
            model.rewind(17)
        with pytest.raises(RunError, match="the cache is full with 16 tokens; the largest size holds 16"):
            model.step(0)


@pytest.mark.slow
def test_no_output_depends_on_what_another_text_left(tmp_path: Path) -> None:
    sizes = {"sequence": (4,), "past": (8, 16), "audio": (AUDIO,)}
    model = load(compile_decoder(DECODERS["whisper"](), tmp_path, sizes))
    model.reset(encoder_hidden_states=STATES)
    wanted = [model.step(tokens)[0] for tokens in ([1, 2, 3], 4, 5)]
    for poisoned in (2, 5):
        model.reset(encoder_hidden_states=np.full_like(STATES, np.nan))
        for length in (0, poisoned):
            model.rewind(length)
            model.step([7] * 5)
        cache = model._decoder._arrays.values()  # type: ignore[union-attr]
        assert all(np.isnan(array).any() for array in list(cache)[4:])  # of the second layer
        model.reset(encoder_hidden_states=STATES)
        for tokens, one in zip(([1, 2, 3], 4, 5), wanted, strict=True):
            np.testing.assert_allclose(model.step(tokens)[0], one, rtol=1e-3, atol=1e-4)
        model.step([6] * 3, encoder_hidden_states=np.full_like(STATES, np.nan))  # four rows
        model.rewind(4)
        np.testing.assert_allclose(model.step(5)[0], wanted[2], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_reset_writes_nothing_and_a_step_only_rows_behind_it(tmp_path: Path) -> None:
    model = load(compile_decoder(llama(), tmp_path, {"sequence": (1,), "past": (16,)}))
    model.step([1] * 9)
    decoder = model._decoder
    assert decoder is not None
    for array in decoder._arrays.values():
        array[...] = 7
    model.reset()
    assert all((array == 7).all() for array in decoder._arrays.values())
    model.step([1, 2])
    for name, array in decoder._arrays.items():
        rows = np.moveaxis(array, decoder._axes[name], 0)
        assert not (rows[:2] == 7).all()
        assert not rows[2:9].any()
        assert (rows[9:] == 7).all()


ALONE = """
import sys
import tunefarm_runtime

model = tunefarm_runtime.load(sys.argv[1])
print(*model.step([1, 2])[0][0, -1, :3], "tvm" in sys.modules)
"""


@pytest.mark.slow
def test_a_decoder_runs_without_a_compiler(tmp_path: Path) -> None:
    """Its first step allocates buffers before it needs the library of a size."""
    folder = compile_decoder(llama(), tmp_path, {"sequence": (1,), "past": (8, 16)})
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(folder)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    *found, has_tvm = done.stdout.split()
    wanted = load(folder).step([1, 2])[0][0, -1, :3]
    np.testing.assert_allclose(list(map(float, found)), wanted, rtol=1e-4)
    assert has_tvm == "False"


@pytest.mark.slow
def test_decoders_of_two_files_are_one_if_their_outputs_agree(tmp_path: Path) -> None:
    made = {}
    for name, seed, count in (("prefill", 1, 4), ("decode", 1, 1), ("other", 2, 1)):
        folder = tmp_path / name
        folder.mkdir()
        made[name] = compile_decoder(llama(seed=seed), folder, {"sequence": (count,), "past": (8,)}) / "one"

    def together(*names: str) -> Path:
        root = tmp_path / "-".join(names)
        for name in names:
            shutil.copytree(made[name], root / name)
            text = (root / name / "manifest.json").read_text()
            (root / name / "manifest.json").write_text(text.replace('"sha"', f'"{name}"'))
        return root

    model = load(together("decode", "prefill"))
    tokens = [5, 3, 8, 1, 9, 2]
    found = [*model.step(tokens[:5])[0][0], *model.step(tokens[5:])[0][0]]
    single = load(made["decode"])
    np.testing.assert_allclose(found, [single.step(one)[0][0, 0] for one in tokens], rtol=1e-3, atol=1e-4)
    with pytest.raises(LoadError, match=r"compute different outputs .*, so they aren't one decoder"):
        load(together("other", "prefill"))


@pytest.mark.slow
def test_invalid_inputs_of_a_step_are_refused(tmp_path: Path) -> None:
    model = load(
        compile_decoder(DECODERS["whisper"](), tmp_path, {"sequence": (1,), "past": (8,), "audio": (AUDIO,)})
    )
    with pytest.raises(RunError, match=r"the model keeps its cache: call reset\(\) and step"):
        model(np.zeros((1, 1), np.int64))
    with pytest.raises(RunError, match="the input encoder_hidden_states is missing: pass it to reset"):
        model.step(1)
    with pytest.raises(
        RunError,
        match="the model has no input states; its inputs besides the tokens are: encoder_hidden_states",
    ):
        model.reset(states=STATES)
    model.reset(encoder_hidden_states=STATES[:, :2])
    with pytest.raises(RunError, match=r"encoder_hidden_states is float32 \(1, 2, 32\), and the model takes"):
        model.step(1)
    model.reset(encoder_hidden_states=STATES)
    wrong: list[Any] = [[], np.zeros((2, 1), np.int64), np.zeros((1, 1, 1), np.int64)]
    for tokens in wrong:
        with pytest.raises(RunError, match=r"input_ids has the shape .*, and a step takes \(1, tokens\)"):
            model.step(tokens)
    with pytest.raises(RunError, match="input_ids is float64, and a step takes int64: convert it first"):
        model.step(1.5)
    with pytest.raises(RunError, match="the cache is full with 8 tokens"):
        model.step([1] * 9)
    assert model.length == 0
    cache = model._decoder._tensors["past_key_values.0.decoder.key"]  # type: ignore[union-attr]
    for _ in range(8):
        model.step(1)
        assert model._decoder._tensors["past_key_values.0.decoder.key"] is cache  # type: ignore[union-attr]
    peer = contestants.OnnxRuntime(tmp_path / "decoder.onnx")
    compared = compare(tmp_path / "tuned" / "one", [peer], threads=1, seconds=0.1)
    assert [(row.name, row.error) for row in compared.rows] == [("tunefarm", ""), ("ONNX Runtime", "")]

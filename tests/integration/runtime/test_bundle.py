"""A bundle needs only a C or C++ compiler, runs, and reports errors."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from tunefarm_runtime import LoadError, load
from tunefarm_runtime.bundle import SOURCES, make_bundle

from examples.networks.decoders import DECODERS, llama
from tests.compiled_models import compile_decoder, compile_model
from tests.onnx_models import products, residual

WARNINGS = ("-Wall", "-Wextra", "-Werror", "-pedantic")
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]

CPP = """
#include <iostream>
#include "tunefarm.hpp"

int main(int argc, char** argv) {
  try {
    tunefarm_runtime::Model loaded(argv[1], 1);
    tunefarm_runtime::Model model = std::move(loaded);
    std::vector<float> x(model.inputs()[0].bytes / sizeof(float), 1.0f);
    std::vector<float> first(x.size()), second(x.size());
    for (int run = 0; run < 3; ++run) model.run({x.data() + 0}, {first.data(), second.data()});
    std::cout << model.outputs()[1].name << " " << first[0] << " " << second[0] << std::endl;
    if (argc > 2) model.run({nullptr}, {first.data(), second.data()});
  } catch (const tunefarm_runtime::Error& error) {
    std::cout << error.code << " " << error.what() << std::endl;
  }
}
"""


SEVERAL = """
#include <cstdio>
#include "tunefarm.hpp"

int main(int argc, char** argv) {
  std::vector<tunefarm_runtime::Model> models;
  for (int i = 1; i < argc; ++i) models.emplace_back(argv[i], 1);
  for (auto& model : models) {
    std::vector<float> x(model.inputs()[0].bytes / sizeof(float), 1.0f);
    std::vector<std::vector<float>> y;
    std::vector<void*> places;
    for (auto& one : model.outputs()) y.emplace_back(one.bytes / sizeof(float));
    for (auto& one : y) places.push_back(one.data());
    model.run({x.data() + 0}, places);
    std::printf("%g\\n", y[0][0]);
  }
}
"""


DECODER = """
#include <cstdint>
#include <cstdio>
#include "tunefarm.hpp"

int main(int argc, char** argv) {
  tunefarm_runtime::Model model(argv[argc - 1], 1);
  int64_t tokens[2];
  float logits[2 * 50];
  int steps[][2] = {{2, 3}, {1, 7}, {2, 4}};
  for (int round = 0; round < 2; ++round) {
    model.reset();
    for (auto& step : steps) {
      tokens[0] = step[1];
      tokens[1] = step[0] == 2 ? step[1] + 1 : 0;
      model.step(step[0], {tokens}, {logits});
    }
    std::printf("%zu %g\\n", model.inputs().size(), logits[50]);
  }
  model.reset(3);
  model.step(2, {tokens}, {logits});
  std::printf("%g\\n", logits[50]);
  for (std::size_t count : {0, 3, 2, 2}) {
    try {
      model.step(count, {tokens}, {logits});
    } catch (const tunefarm_runtime::Error& error) {
      std::printf("%s\\n", error.what());
    }
  }
  try {
    model.run({tokens}, {logits});
  } catch (const tunefarm_runtime::Error& error) {
    std::printf("%s\\n", error.what());
  }
  try {
    model.reset(9);
  } catch (const tunefarm_runtime::Error& error) {
    std::printf("%s\\n", error.what());
  }
}
"""


POISONED = """
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>
#include "tunefarm.hpp"

int main(int argc, char** argv) {
  tunefarm_runtime::Model model(argv[argc - 1], 1);
  int64_t tokens[2] = {3, 4};
  float logits[2 * 50];
  std::size_t count = model.inputs()[1].bytes / sizeof(float);
  std::vector<float> good(count, 0.5f), poison(count, NAN);
  for (std::size_t kept : {0, 2}) {
    model.reset(kept);
    if (kept == 0) model.step(2, {tokens, good.data()}, {logits});
    for (int i = 0; i < 3; ++i) model.step(2, {tokens, poison.data()}, {logits});
    model.reset(2);
    model.step(1, {tokens, good.data()}, {logits});
    std::printf("%g\\n", logits[0]);
  }
  model.reset();
  for (int i = 0; i < 2; ++i) model.step(2, {tokens, good.data()}, {logits});
  std::printf("%g\\n", logits[0]);
}
"""


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a decoder that takes two tokens a step, and holds eight."""
    folder = tmp_path_factory.mktemp("decoder")
    tuned = compile_decoder(llama(), folder, {"sequence": (2,), "past": (8,)})
    make_bundle(tuned / "one", folder / "bundle")
    return folder / "bundle"


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_decoder_keeps_its_cache_in_c(decoder: Path, compiler: str, tmp_path: Path) -> None:
    main = build(decoder, tmp_path / "main", [decoder / "main.c"], compiler, "-std=c11")
    code, text = output_of(main, str(decoder))
    assert code == 0, text
    model = load(decoder)
    found = [float(word) for word in text.partition(":")[2].split()]
    np.testing.assert_allclose(found, model.step(0)[0].ravel()[:5], rtol=1e-3)

    (tmp_path / "main.cpp").write_text(DECODER)
    own = {"gcc": "g++", "clang": "clang++"}[compiler]
    main = build(decoder, tmp_path / "steps", [tmp_path / "main.cpp"], own, "-std=c++17")
    code, text = output_of(main, str(decoder))
    first, second, again, *errors = text.splitlines()
    model.reset()
    for tokens in ([3, 4], 7, [4, 5]):
        (logits,) = model.step(tokens)
    assert (code, first) == (0, second)
    assert first.startswith("1 ")
    np.testing.assert_allclose(float(first.split()[1]), logits[0, 1, 0], rtol=1e-3)
    np.testing.assert_allclose(float(again), logits[0, 1, 0], rtol=1e-3)
    assert errors == [
        "a step takes 1 to 2 tokens, not 0",
        "a step takes 1 to 2 tokens, not 3",
        "the cache has 7 tokens, and a step needs room for 2 of 8: call tunefarm_reset",
        "the model keeps its cache: call tunefarm_step",
        "the cache can't be reset to 9 tokens: it has 7",
    ]


@pytest.mark.slow
def test_no_output_in_c_depends_on_what_another_text_left(tmp_path: Path) -> None:
    sizes = {"sequence": (2,), "past": (8,), "audio": (6,)}
    tuned = compile_decoder(DECODERS["whisper"](), tmp_path, sizes)
    make_bundle(tuned / "one", tmp_path / "bundle")
    (tmp_path / "main.cpp").write_text(POISONED)
    main = build(tmp_path / "bundle", tmp_path / "main", [tmp_path / "main.cpp"], "g++", "-std=c++17")
    code, text = output_of(main, str(tmp_path / "bundle"))
    assert code == 0, text
    model = load(tmp_path / "bundle")
    model.reset(encoder_hidden_states=np.full((1, 6, 32), 0.5, np.float32))
    model.step([3, 4])
    wanted = model.step([3, 4])[0][0, 0, 0]
    np.testing.assert_allclose([float(line) for line in text.splitlines()], [wanted] * 3, rtol=1e-3)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    make_bundle(compile_model(residual(), folder / "model"), folder / "bundle")
    return folder / "bundle"


def two_outputs() -> bytes:
    """Its names have spaces, and its inputs are at any address."""
    nodes = [helper.make_node("Neg", ["an input"], ["y 0"]), helper.make_node("Exp", ["an input"], ["y%1"])]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (3, 5)) for name in ("an input", "y 0", "y%1")
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def build(bundle: Path, program: Path, sources: list[Path], compiler: str, *flags: str) -> Path:
    """Compile a program with the bundle's own files only, and return it."""
    library = program.with_suffix(".o")
    c_compiler = {"g++": "gcc", "clang++": "clang"}.get(compiler, compiler)
    include = ["-I", str(bundle), "-I", str(bundle / "include")]
    subprocess.run(
        [c_compiler, "-std=c11", *WARNINGS, *include, "-c", str(bundle / "tunefarm.c"), "-o", str(library)],
        check=True,
    )
    lib = str(bundle / "lib")
    command = [compiler, *flags, *WARNINGS, *include, *map(str, sources), str(library), "-o", str(program)]
    subprocess.run([*command, f"-L{lib}", "-l:libtvm_ffi.so", "-ldl", f"-Wl,-rpath,{lib}"], check=True)
    return program


def output_of(program: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_example_runs_as_python_does(bundle: Path, compiler: str, tmp_path: Path) -> None:
    main = build(bundle, tmp_path / "main", [bundle / "main.c"], compiler, "-std=c11")
    code, text = output_of(main, str(bundle))
    assert code == 0
    (expected,) = load(bundle)(np.ones((1, 3, 8, 8), np.float32))
    found = [float(word) for word in text.partition(":")[2].split()]
    np.testing.assert_allclose(found, expected.ravel()[:5], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake isn't installed")
def test_cmake_builds_the_bundle(bundle: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(bundle, tmp_path / "elsewhere")
    subprocess.run(["cmake", "-S", str(copy), "-B", str(tmp_path / "build")], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", str(tmp_path / "build")], check=True, capture_output=True)
    code, text = output_of(tmp_path / "build" / "main", str(copy))
    assert (code, text.count("float32")) == (0, 1)


def test_cpp_runs_several_outputs_and_throws(tmp_path: Path) -> None:
    made = tmp_path / "bundle"
    make_bundle(compile_model(two_outputs(), tmp_path / "model"), made)
    (tmp_path / "main.cpp").write_text(CPP)
    main = build(made, tmp_path / "main", [tmp_path / "main.cpp"], "g++", "-std=c++17", "-Wno-unused")
    assert output_of(main, str(made)) == (0, "y%251 -1 2.71828\n")
    assert output_of(main, str(made), "null") == (0, "y%251 -1 2.71828\n1 input an%20input is NULL\n")
    if platform.machine() == "x86_64" and "amx_tile" not in Path("/proc/cpuinfo").read_text():
        description = (made / "model.txt").read_text()
        (made / "model.txt").write_text(f"tiles\n{description}")
        assert f"{made} uses AMX, and Linux doesn't let this process" in output_of(main, str(made))[1]
        (made / "model.txt").write_text(description)
    assert output_of(main, "/nowhere") == (0, "2 /nowhere/model.txt can't be read: name a bundle's folder\n")
    (made / "model.so").write_bytes(b"not a library")
    _, text = output_of(main, str(made))
    assert text.startswith("4 ")
    assert "model.so" in text
    (made / "lib" / "libtvm_runtime.so").unlink()
    assert "2 TVM's runtime can't be loaded" in output_of(main, str(made))[1]
    (made / "model.txt").write_text("input x float32 three\nthreads 1\n")
    assert "describes no output: make the bundle again" in output_of(main, str(made))[1]
    (made / "model.txt").write_text("output x\n")
    assert "model.txt is damaged" in output_of(main, str(made))[1]


def test_a_weight_larger_than_its_bytes_is_refused(tmp_path: Path) -> None:
    made = tmp_path / "bundle"
    make_bundle(compile_model(products(extent=256), tmp_path / "model"), made)
    main = build(made, tmp_path / "main", [made / "main.c"], COMPILERS[0], "-std=c11")
    assert output_of(main, str(made))[0] == 0
    library = made / "model.so"
    right = library.read_bytes()
    for line in (b" 000004 256 256\n", b" 262144 -56 256\n", b" 262144 256 999\n"):
        damaged = right.replace(b" 262144 256 256\n", line)
        assert len(damaged) == len(right)
        assert damaged != right
        library.write_bytes(damaged)
        code, text = output_of(main, str(made))
        assert code == 2
        assert "model.so is damaged: make the bundle again" in text


def test_a_program_runs_several_bundles(bundle: Path, tmp_path: Path) -> None:
    """Each has the runtime libraries, but a process loads them once."""
    make_bundle(compile_model(two_outputs(), tmp_path / "model"), tmp_path / "other")
    (tmp_path / "main.cpp").write_text(SEVERAL)
    main = build(bundle, tmp_path / "main", [tmp_path / "main.cpp"], "g++", "-std=c++17", "-Wno-unused")
    make_bundle(compile_model(products(), tmp_path / "large"), tmp_path / "weights")
    folders = [bundle, tmp_path / "other", tmp_path / "weights", bundle]
    code, text = output_of(main, *map(str, folders))
    first, other, weighted, again = text.split()
    (expected,) = load(bundle)(np.ones((1, 3, 8, 8), np.float32))
    np.testing.assert_allclose(float(first), expected[0, 0], rtol=1e-4)
    (expected,) = load(tmp_path / "weights")(np.ones((1, 128), np.float32))
    np.testing.assert_allclose(float(weighted), expected[0, 0], rtol=1e-4)
    assert (code, other, again) == (0, "-1", first)


NARROW = """
#include <iostream>
#include "tunefarm.hpp"

int main(int argc, char** argv) {
  tunefarm_runtime::Model model(argv[argc - 1], 1);
  const unsigned char x[4] = {0xF8, 0x0F, 0x07, 0x10};  /* -8, -1, 7, 0: the upper bits don't matter */
  unsigned char y[4];
  signed char z[4];
  model.run({x}, {y, z});
  std::cout << model.inputs()[0].dtype << " " << model.inputs()[0].bytes;
  for (int k = 0; k < 4; ++k) std::cout << " " << int(y[k]) << " " << int(z[k]);
}
"""


@pytest.mark.slow
def test_elements_of_less_than_a_byte_take_a_byte(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("Cast", ["x"], ["z"], to=TensorProto.INT8),
    ]
    types = {"x": TensorProto.INT4, "y": TensorProto.INT4, "z": TensorProto.INT8}
    values = [helper.make_tensor_value_info(name, dtype, [4]) for name, dtype in types.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    make_bundle(compile_model(model.SerializeToString(), tmp_path / "model"), tmp_path / "bundle")
    (tmp_path / "main.cpp").write_text(NARROW)
    main = build(tmp_path / "bundle", tmp_path / "main", [tmp_path / "main.cpp"], "g++", "-std=c++17")
    assert output_of(main, str(tmp_path / "bundle")) == (0, "int4 4 8 -8 15 -1 7 7 0 0")


def test_a_bundle_is_small_and_complete(bundle: Path) -> None:
    libraries = sum(file.stat().st_size for file in (bundle / "lib").iterdir())
    assert libraries <= 10e6
    assert {file.name for file in SOURCES.iterdir()} <= {file.name for file in bundle.iterdir()}
    assert len((bundle / "main.c").read_text().splitlines()) <= 60
    assert (bundle / "model.txt").read_text().splitlines()[:2] == ["threads 1", "input input float32 1 3 8 8"]


def test_no_folder_is_overwritten(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(LoadError, match="isn't empty: name a new folder"):
        make_bundle(bundle, tmp_path / "full")
    with pytest.raises(LoadError, match=r"manifest\.json can't be read"):
        make_bundle(tmp_path / "nowhere", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_no_half_of_a_bundle_is_left(bundle: Path, tmp_path: Path) -> None:
    model = shutil.copytree(bundle, tmp_path / "model")
    with (model / "model.so").open("ab") as library:  # the end of an index of weights that isn't there
        library.write(b"TFWHOLE1" + (1 << 40).to_bytes(8, "little"))
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        with pytest.raises(LoadError, match=r"model\.so is damaged"):
            make_bundle(model, tmp_path / name)
    assert not (tmp_path / "new").exists()
    assert list((tmp_path / "empty").iterdir()) == []

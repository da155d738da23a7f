"""Products of float16 on Arm: by `fmlal`, or in blocks of halves. qemu executes the compiled programs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import te, topi

from compiler.codegen.compilation import compile_functions
from compiler.lowering.trace import apply_trace, lower
from compiler.measuring.rounding import Rounding
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device, parse_target, target_features
from core.device import Device
from search.cost.analytic import estimate
from search.programs.annotate import sample
from search.rules.space import generate
from search.sketches.half_products import adds_in_blocks
from search.sketches.stage import StageKind
from tests import arm_programs
from tests.marks import slow_lane_except

Array = NDArray[Any]
needs_emulator = pytest.mark.skipif(arm_programs.obstacle() is not None, reason=f"{arm_programs.obstacle()}")


def _device(mcpu: str, *features: str) -> Device:
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": mcpu, "mattr": ["-sve"], "num-cores": 1}
    return replace(
        detect_device(),
        triple="aarch64-linux-gnu",
        mcpu=mcpu,
        features=("asimd", "asimdhp", *features),
        vector_bytes=16,
        target=json.dumps(target),
    )


# Processors with and without FEAT_FHM, and their instructions.
DEVICES = {
    "fmlal": (_device("neoverse-v1", "asimdfhm"), r"fmlal\s+v\d+\.4s, v\d+\.4h, v\d+"),
    "blocks": (_device("cortex-a76"), r"fmla\s+v\d+\.[48]h, v\d+\.[48]h, v\d+"),
}


def _product(rows: int, lanes: int, depth: int) -> list[te.Tensor]:
    a = te.placeholder((rows, depth), "float16", name="a")
    b = te.placeholder((depth, lanes), "float16", name="b")
    k = te.reduce_axis((0, depth), "k")
    return [
        a,
        b,
        te.compute(
            (rows, lanes),
            lambda i, j: te.sum(a[i, k].astype("float32") * b[k, j].astype("float32"), k),
            name="product",
        ),
    ]


def _convolution(size: int, inputs: int, outputs: int) -> list[te.Tensor]:
    a = te.placeholder((1, size, size, inputs), "float16", name="a")
    b = te.placeholder((3, 3, inputs, outputs), "float16", name="b")
    return [a, b, topi.nn.conv2d(a, b, 1, 1, 1, "NHWC", "HWIO", out_dtype="float32")]


CASES = {"product": _product(12, 32, 64), "odd": _product(7, 20, 15), "convolution": _convolution(6, 16, 24)}


def _module(tensors: list[te.Tensor]) -> tvm.IRModule:
    return tvm.IRModule({"main": te.create_prim_func(tensors).with_attr("tirx.noalias", True)})


def _inputs(tensors: list[te.Tensor]) -> list[Array]:
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal([int(extent) for extent in each.shape]).astype("float16") for each in tensors[:2]
    ]


def _exact(name: str, a: Array, b: Array) -> Array:
    if name != "convolution":
        return a @ b
    padded = np.pad(a, [(0, 0), (1, 1), (1, 1), (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("nyxchw,hwcf->nyxf", windows, b)


@needs_emulator
@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("name", slow_lane_except(CASES, "odd"))
def test_programs_are_right(name: str, kind: str, tmp_path: Path) -> None:
    device, instruction = DEVICES[kind]
    target = parse_target(device.target)
    assert adds_in_blocks(target_features(target)) == (kind == "blocks")
    module, inputs = _module(CASES[name]), _inputs(CASES[name])
    expected = _exact(name, *(each.astype(np.float64) for each in inputs)).astype(np.float32)
    allowed = Rounding.of(module["main"], in_blocks=kind == "blocks").bounds(expected, None)
    rng = np.random.default_rng(1)
    sketches = [one for one in generate(read_dag(module), device) if one.of_kind(StageKind.TILED)]
    assert sketches
    used = []
    for place, sketch in enumerate(sketches):
        population = sample(sketch, 64, rng)
        program = population.program(int(np.argmin(estimate(population, device).seconds)))
        scheduled = apply_trace(module, lower(module, program, device))
        library = compile_functions(scheduled, target, check_arguments=True)
        folder = tmp_path / str(place)
        folder.mkdir()
        found = arm_programs.run(library, [*inputs, np.full(expected.shape, 113, np.float32)], folder)
        assert (np.abs(found - expected) <= allowed).all(), str(program)
        used.append(bool(re.search(instruction, library.mod.inspect_source("s"))))
    # Where extents are small or odd, a conversion may be as good.
    assert any(used) or name != "product"

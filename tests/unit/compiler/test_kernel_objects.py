"""A model's kernels are compiled in parts, all but one, and linked into one library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from compiler.importing.model import fuse_operators
from compiler.packaging.artifact import build_library
from compiler.packaging.kernel_objects import KernelObjects
from tests.compiled import load_main

TARGET = '{"kind":"llvm"}'
WIDTHS = (3, 5, 7, 11, 13)


def _module(*widths: int) -> tvm.IRModule:
    """A softmax over rows of each width, one after the other."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((15015,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value: relax.Expr = x
            for width in widths:
                rows = builder.emit(relax.op.reshape(value, (15015 // width, width)))
                value = builder.emit(relax.op.nn.softmax(rows))
            output = builder.emit_output(relax.op.reshape(value, (15015,)))
        builder.emit_func_output(output)
    return fuse_operators(builder.get(), TARGET)


def _lowered(module: tvm.IRModule) -> tvm.IRModule:
    return relax.get_pipeline("default")(module)


def test_each_kernel_is_in_one_object_or_stays(tmp_path: Path) -> None:
    lowered = _lowered(_module(*WIDTHS))
    names = {var.name_hint for var in lowered.get_global_vars()} - {"main"}
    with KernelObjects(tvm.target.Target(TARGET), "default", tmp_path) as kernels:
        rest = kernels.start(lowered)
        objects = [Path(path).read_bytes() for path in kernels.paths()]
    (kept,) = {var.name_hint for var in rest.get_global_vars()} - {"main"}
    assert len(objects) > 1
    found = [name for name in names for one in objects if f"__tvm_ffi_{name}\0".encode() in one]
    assert sorted(found) == sorted(names - {kept})


@pytest.mark.parametrize("widths", [(), (7,), WIDTHS], ids=len)
def test_the_library_computes_with_all_kernels(widths: tuple[int, ...], tmp_path: Path) -> None:
    module = _module(*widths)
    build_library(module, TARGET, tmp_path / "model.so")
    x = np.random.default_rng(0).standard_normal(15015).astype(np.float32)
    machine = relax.VirtualMachine(relax.build(module, tvm.target.Target(TARGET)), tvm.cpu())
    wanted = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_array_equal(load_main(tmp_path / "model.so")(tvm.runtime.tensor(x)).numpy(), wanted)


def test_a_part_that_cannot_be_compiled_is_an_error(tmp_path: Path) -> None:
    with KernelObjects(tvm.target.Target(TARGET), "no such pipeline", tmp_path) as kernels:
        kernels.start(_lowered(_module(*WIDTHS)))
        with pytest.raises(ValueError, match="no such pipeline"):
            kernels.paths()

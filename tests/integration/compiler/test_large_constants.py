"""Large constants are written into a library as TVM would pack them, without copies in memory."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst

from compiler.packaging import large_constants
from compiler.packaging.large_constants import LargeConstants
from compiler.packaging.linker import find_linker, link_library
from compiler.target import host_triple
from tests.integration.compiler.constant_models import EXTENT, adder

TARGET = '{"kind":"llvm","num-cores":2}'
RNG = np.random.default_rng(0)


def _weights(dtype: Any, extent: int = EXTENT) -> NDArray[Any]:
    return RNG.integers(0, 2, (extent, extent)).astype(dtype)


def _packed_by_tvm(module: tvm.IRModule) -> bytes:
    pack = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")
    return np.from_dlpack(pack(relax.build(module, tvm.target.Target(TARGET)).mod)).tobytes()


def _packed_in(library: Path) -> bytes:
    loaded = ctypes.CDLL(str(library))
    size = ctypes.c_uint64.in_dll(loaded, large_constants.SYMBOL).value
    return (ctypes.c_char * (8 + size)).in_dll(loaded, large_constants.SYMBOL).raw


MIXED: tuple[NDArray[Any], ...] = (
    *(_weights(dtype) for dtype in ("float32", "float16", ml_dtypes.bfloat16, "int8", "uint8", "bool")),
    RNG.standard_normal((EXTENT, EXTENT)).astype("float32"),
    np.ones((1, EXTENT), "float32"),
    np.asarray(2.0, "float32"),
)


def _build_as_for_a_gpu(module: tvm.IRModule, library: Path) -> None:
    constants, target = LargeConstants(), tvm.target.Target(TARGET)

    def pipeline(module: tvm.IRModule) -> tvm.IRModule:
        return constants.set_aside(relax.get_pipeline("default")(module))

    triple = host_triple(target)
    built = relax.build(module, target, relax_pipeline=pipeline)
    link_library(built, triple, find_linker(triple), library, constants)


@pytest.mark.parametrize("weights", [MIXED, (MIXED[6],) * 2, MIXED[7:]], ids=["mixed", "equal", "small"])
def test_a_library_has_the_bytes_that_tvm_would_pack(
    weights: tuple[NDArray[Any], ...], tmp_path: Path
) -> None:
    library, module = tmp_path / "model.so", adder(*weights)
    _build_as_for_a_gpu(module, library)
    assert _packed_in(library) == _packed_by_tvm(module)
    data = RNG.standard_normal((EXTENT, EXTENT)).astype("float32")
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    result = machine["main"](tvm.runtime.tensor(data)).numpy()
    np.testing.assert_allclose(
        result, data + sum(one.astype("float32") for one in weights), rtol=1e-5, atol=1e-5
    )


def test_tvm_does_not_pack_large_constants() -> None:
    constants = LargeConstants()
    module = relax.get_pipeline("default")(adder(*MIXED))
    assert max(_bytes_of_constants(module)) > large_constants.MIN_BYTES
    assert max(_bytes_of_constants(constants.set_aside(module))) < large_constants.MIN_BYTES


def test_a_constant_with_the_digest_of_another_stays(tmp_path: Path) -> None:
    """A model that could redirect its weights could write its own bytecode."""
    weight, library = MIXED[6], tmp_path / "model.so"
    forged = hashlib.sha256(f"float32 {weight.shape} ".encode() + weight.tobytes()).digest()
    module = adder(weight, np.resize(np.frombuffer(forged, "uint8"), (1, EXTENT)))
    _build_as_for_a_gpu(module, library)
    assert _packed_in(library) == _packed_by_tvm(module)


PEAK = """
import sys
from pathlib import Path
import numpy as np
from compiler.packaging.artifact import build_library
from tests.integration.compiler.constant_models import adder

TARGET = '{"kind":"llvm","num-cores":2}'

def peak_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))

build_library(adder(np.ones((1, 300), "float32")), TARGET, Path(sys.argv[1]))  # what it takes anyway
weight = np.random.default_rng(0).standard_normal((6144, 6144), dtype="float32")
module, before = adder(weight, extent=6144), peak_bytes()
build_library(module, TARGET, Path(sys.argv[1]))
print((peak_bytes() - before) / weight.nbytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory a process has taken")
def test_compiling_takes_no_copy_of_the_weights(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PEAK, str(tmp_path / "model.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert float(done.stdout) < 0.5  # TVM's own way: 3.0


def _bytes_of_constants(module: tvm.IRModule) -> list[int]:
    found: list[int] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, GenericConst) and isinstance(expr.value, tvm.runtime.Tensor):
            found.append(expr.value.numpy().nbytes)

    relax.analysis.post_order_visit(module["main"], visit)
    return found

"""Store the large constants of CPU models outside their code, as parameters of the library's `main`.

The constants are mapped into memory from the library's file. Sizes of a model share the files, and processes
share the memory. A GPU library holds its constants itself, because CUDA graphs capture them.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import GenericConst

from compiler.packaging.large_constants import content_of, is_large
from core.library_weights import append, read_index

_MAIN = "main"


class Weights:
    """The large constants of a model during its compilation."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, tuple[Any, relax.Var]] = {}

    def lift(self, module: tvm.IRModule) -> tvm.IRModule:
        """Turn the large constants of `main` into its last parameters. Equal constants share a parameter.

            def main(x): return add(x, CONSTANT)  ->  def main(x, weight0): return add(x, weight0)

        Run this right before TVM generates bytecode, after memory was planned.
        """

        def replace(const: GenericConst) -> relax.Expr:
            tensor = const.value
            if not isinstance(tensor, tvm.runtime.Tensor) or not is_large(tensor):
                return const
            digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(content_of(tensor))
            known = self._by_digest.get(digest.digest())
            if known is None:
                known = tensor, relax.Var(f"weight{len(self._by_digest)}", const.ty)
                self._by_digest[digest.digest()] = known
            return known[1]

        main = module[_MAIN]
        body = tvm_ffi.structural_map(main.body, (GenericConst, replace))
        params = [*main.params, *(variable for _, variable in self._by_digest.values())]
        lifted = relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs)
        functions = dict(module.functions_items()) | {module.get_global_var(_MAIN): lifted}
        return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)

    def append(self, library: Path) -> None:
        """Append the lifted constants to a library's file, in the order of its parameters."""
        tensors = [tensor for tensor, _ in self._by_digest.values()]
        if tensors:
            shapes = [tuple(map(int, one.shape)) for one in tensors]
            pairs = zip(tensors, shapes, strict=True)
            append(library, [(str(one.dtype), shape, content_of(one)) for one, shape in pairs])


def bind_weights(main: Callable[..., Any], library: Path) -> Callable[..., Any]:
    """Return a library's `main` with its weights bound, as a function of the model's inputs.

    The weights are mapped from the library's file. The file may be deleted afterwards. Raises WeightsError.
    """
    with library.open("rb") as file:
        index = read_index(file)
        if not index.weights:
            return main
        # DLPack accepts only writable memory. These pages are private: a write copies the page, not the file.
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
    view = tvm_ffi.get_global_func("runtime.TVMTensorCreateView")
    weights = [
        view(
            tvm_ffi.from_dlpack(mapped[one.offset : one.offset + one.size]),
            tvm_ffi.Shape(one.shape),
            tvm_ffi.dtype(one.dtype),
            0,
        )
        for one in index.weights
    ]
    return lambda *inputs: main(*inputs, *weights)

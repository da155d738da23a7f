"""Write the parts of a library besides host code: TVM's bytecode with a model's constants, and GPU kernels.

TVM serializes them into bytes, which its runtime finds in the library under a symbol. TVM alone would hold
five copies of the constants: as tensors, in two byte strings, in LLVM's code and in an object file.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import struct
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir import GenericConst

from compiler.packaging.elf import write_object

# The symbol of tvm/ffi/extra/module.h.
SYMBOL = "__tvm_ffi__library_bin"
# TVM keeps smaller constants.
MIN_BYTES = 64 << 10
_SIZE = struct.Struct("<Q")
# The header of a tensor: the number of axes (one), the type, the shape, the number of bytes. The elements
# follow.
_DESCRIBED = struct.Struct("<i4sqq")


class LargeConstants:
    """The large constants of a GPU's model during compilation. A small tensor with the constant's digest
    replaces each one. The constants themselves are written from memory to an object file.
    """

    def __init__(self) -> None:
        self._by_digest: dict[bytes, Any] = {}
        # Salted, because a model could contain the plain digest of one of its constants.
        self._salt = secrets.token_bytes(32)

    def set_aside(self, module: tvm.IRModule) -> tvm.IRModule:
        """Replace large constants with small tensors. Equal constants get equal tensors. At this point, right
        before TVM generates bytecode, nothing reads the shapes of constants any more.
        """

        def replace(const: GenericConst) -> GenericConst:
            tensor = const.value
            if not isinstance(tensor, tvm.runtime.Tensor) or not is_large(tensor):
                return const
            digest = hashlib.sha256(self._salt + f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(content_of(tensor))
            self._by_digest[digest.digest()] = tensor
            elements = tvm.runtime.tensor(np.frombuffer(digest.digest(), "uint8"))
            shape = (digest.digest_size // tensor.dtype.itemsize,)
            return GenericConst(elements._create_view(shape, tensor.dtype), const.ty)

        functions = {
            name: tvm_ffi.structural_map(function, (GenericConst, replace))
            if isinstance(function, relax.Function)
            else function
            for name, function in module.functions_items()
        }
        return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)

    def write_imports(self, module: Any, arch: str, path: Path) -> None:
        """Write the parts of a compiled module besides host code to an object file for one of `elf.ARCHS`,
        including the constants that were set aside.
        """
        packed = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(module)
        with path.open("wb") as file:
            write_object(file, arch, SYMBOL, self._put_back(np.from_dlpack(packed).tobytes()))

    def _put_back(self, packed: bytes) -> list[bytes | memoryview]:
        """Return TVM's serialized bytes in parts, with the constants restored.

            size, [number, ...], [number, ...], "relax.VMExecutable", size of what follows, ...,
            (head, 1, type, 8, 32, digest), ...
        ->
            size', [number, ...], [number, ...], "relax.VMExecutable", size' of what follows, ...,
            (head, number of axes, type, shape, number of bytes, constant), ...
        """
        places = sorted(
            (found.span(), tensor)
            for digest, tensor in self._by_digest.items()
            for found in re.finditer(re.escape(digest), packed)
        )
        if not places:
            return [packed]
        size_at = _SIZE.size
        for width in (8, 8, 1):
            (length,) = _SIZE.unpack_from(packed, size_at)
            size_at += _SIZE.size + width * length
        sizes = bytearray(packed[: size_at + _SIZE.size])
        done, parts = len(sizes), list[bytes | memoryview]()
        for (start, end), tensor in places:
            described_at = start - _DESCRIBED.size
            _, dtype, _, _ = _DESCRIBED.unpack_from(packed, described_at)
            content, axes = content_of(tensor), tensor.ndim
            described = struct.pack(f"<i4s{axes}qq", axes, dtype, *tensor.shape, len(content))
            parts += [packed[done:described_at], described, content]
            done = end
        parts.append(packed[done:])
        more = len(sizes) + sum(map(len, parts)) - len(packed)
        for at in (0, size_at):
            _SIZE.pack_into(sizes, at, _SIZE.unpack_from(sizes, at)[0] + more)
        return [bytes(sizes), *parts]


def is_large(tensor: Any) -> bool:
    """Return whether a constant is large and its elements are whole bytes."""
    return tensor.dtype.bits % 8 == 0 and tensor.dtype.lanes == 1 and _num_bytes(tensor) >= MIN_BYTES


def _num_bytes(tensor: Any) -> int:
    return math.prod(tensor.shape) * int(tensor.dtype.itemsize)


def content_of(tensor: Any) -> memoryview:
    """Return a tensor's bytes without a copy."""
    return np.from_dlpack(tensor._create_view((_num_bytes(tensor),), "uint8")).data

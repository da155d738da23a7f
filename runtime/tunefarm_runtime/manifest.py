"""The manifest of a compiled model: `manifest.json`, which the service writes beside `model.so`."""

from __future__ import annotations

import ctypes
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunefarm_runtime.errors import LoadError
from tunefarm_runtime.signature import check_signature, signed_digest

Array = NDArray[Any]
Shape = tuple[int, ...]
CPU_INFO = Path("/proc/cpuinfo")
# The instruction set that needs the kernel's permission, and the system call that asks for it: arch_prctl,
# ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA.
TILES, REQUEST_TILES = "amx_tile", (158, 0x1023, 18)
_libc = ctypes.CDLL(None, use_errno=True)
# Types whose elements the library keeps as codes in the low bits of a byte, as ml_dtypes does.
NARROW = frozenset(
    {
        *("int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float8_e4m3fn", "float8_e4m3fnuz"),
        *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    }
)


@dataclass(frozen=True)
class Tensor:
    """An input or output: `dtype` is the name of a NumPy or ml_dtypes type, such as `float32`.

    An element of less than a byte, as of `int4`, takes a byte.
    """

    name: str
    shape: Shape
    dtype: str

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The element type. Raises LoadError for one that needs ml_dtypes, where that isn't installed."""
        try:
            return np.dtype(self.dtype)
        except TypeError:
            try:
                import ml_dtypes

                found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.dtype))
                return found
            except (ImportError, AttributeError) as error:
                raise LoadError(
                    f"{self.name} has the element type {self.dtype}, which NumPy lacks: "
                    "install the package ml_dtypes"
                ) from error

    @property
    def storage(self) -> str:
        """The element type of the library's tensor."""
        return "uint8" if self.dtype in NARROW else self.dtype

    def draw(self, rng: np.random.Generator) -> Array:
        """Return values that every model takes: integers may be token ids or a mask, so they are 0 or 1."""
        if self.numpy_dtype.kind in "biu":
            values = rng.integers(0, 2, self.shape)
            values[..., :1] = 1  # no mask hides everything
            return values.astype(self.numpy_dtype)
        return rng.standard_normal(self.shape).astype(self.numpy_dtype)


@dataclass(frozen=True)
class Derived:
    """An input of a decoder's file that its library computes: a mask of all tokens, or new positions."""

    name: str
    dtype: str
    shape: Shape
    is_mask: bool


@dataclass(frozen=True)
class Cache:
    """The cache of a decoder. `buffers` maps the library's inputs for it to the axis of their rows.

    `position` is the input with the number of earlier tokens. `tokens` and `outputs` map inputs and outputs
    to the axis of the `count` new tokens. `derived` are inputs of the model's file that the library computes.
    `moved` maps buffers to the axis that their rows have in the file, where that is another one.
    """

    position: str
    capacity: int
    count: int
    buffers: Mapping[str, int]
    tokens: Mapping[str, int]
    outputs: Mapping[str, int]
    derived: tuple[Derived, ...]
    moved: Mapping[str, int]

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Cache:
        # Manifests of older versions have no `moved`.
        buffers, tokens, outputs, moved = (
            {str(name): int(axis) for name, axis in axes.items()}
            for axes in (data["buffers"], data["tokens"], data["outputs"], data.get("moved", {}))
        )
        derived = tuple(
            Derived(str(one["name"]), str(one["dtype"]), tuple(map(int, one["shape"])), bool(one["is_mask"]))
            for one in data["derived"]
        )
        numbers = int(data["capacity"]), int(data["count"])
        if min(numbers) < 1:
            raise ValueError("a number is too small")
        return cls(str(data["position"]), *numbers, buffers, tokens, outputs, derived, moved)


@dataclass(frozen=True)
class Manifest:
    """The fields of a manifest that the runtime uses.

    `arch` is the processor architecture, such as `x86_64`. `instructions` are the instruction sets that the
    library may use, as /proc/cpuinfo names them; empty in manifests of older services. `threads` is the
    number that the model was tuned for. `signed_digest` is the SHA-256 of the library that a trusted key has
    signed; None where no signature was asked for. A decoder whose library keeps its cache has a `cache`;
    `no_cache` says why another one doesn't.
    """

    folder: Path
    model_sha: str
    device: str
    arch: str
    instructions: tuple[str, ...]
    threads: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    signed_digest: str | None = None
    cache: Cache | None = None
    no_cache: str = ""

    @classmethod
    def read(cls, folder: Path, trusted: str | Sequence[str] | None = None) -> Manifest:
        """Read `folder/manifest.json`. Raises LoadError if there is none, or it is damaged.

        With `trusted` keys, one of them must have signed it, and the library must have the signed digest.
        """
        file = folder / "manifest.json"
        if trusted is not None:
            text = check_signature(folder, trusted)
            return replace(cls.parse(text, folder), signed_digest=signed_digest(text))
        try:
            return cls.parse(file.read_bytes(), folder)
        except OSError as error:
            raise LoadError(f"{file} can't be read: {error.strerror}") from error

    @classmethod
    def parse(cls, text: bytes, folder: Path) -> Manifest:
        """Return the manifest of a folder from the text of its file. Raises LoadError if it is damaged."""
        try:
            data = json.loads(text)
            target = json.loads(data["target"])
            inputs, outputs = (
                tuple(
                    Tensor(str(one["name"]), tuple(map(int, one["shape"])), str(one["dtype"]))
                    for one in data[kind]
                )
                for kind in ("inputs", "outputs")
            )
            host, threads = target.get("host", target), int(data["threads"])
            if threads < 1 or any(extent < 0 for one in (*inputs, *outputs) for extent in one.shape):
                raise ValueError("a number is too small")
            return cls(
                folder=folder,
                model_sha=str(data["model_sha"]),
                device=str(target["kind"]),
                arch=str(host.get("mtriple", platform.machine())).partition("-")[0],
                instructions=tuple(map(str, data.get("instructions", ()))),
                threads=threads,
                inputs=inputs,
                outputs=outputs,
                cache=None if data.get("cache") is None else Cache.parse(data["cache"]),
                no_cache=str(data.get("no_cache", "")),
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise LoadError(
                f"{folder / 'manifest.json'} is damaged or of another version: download the model again"
            ) from error

    def check_machine(self) -> None:
        """Raise LoadError if this machine lacks instructions that the library may use.

        Without the check, the first such instruction would end the process with SIGILL.
        """
        here = platform.machine()
        if self.arch != here:
            raise LoadError(
                f"{self.folder} was compiled for {self.arch}, and this machine is {here}: "
                "tune the model for this machine"
            )
        present = _instructions(CPU_INFO)
        lacking = sorted(set(self.instructions) - present) if present else []
        if lacking:
            raise LoadError(
                f"{self.folder} uses instructions that this machine lacks ({', '.join(lacking)}): "
                "tune the model for this machine"
            )
        if TILES in self.instructions and here == "x86_64":
            _request_tiles(self.folder)


def _request_tiles(folder: Path) -> None:
    """Ask Linux to let this process use AMX's tiles. Raises LoadError if it refuses."""
    if _libc.syscall(*map(ctypes.c_long, REQUEST_TILES)) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise LoadError(
            f"{folder} uses AMX, and Linux doesn't let this process use it ({reason}): "
            "update the kernel to 5.16 or later, or tune the model on a worker with --features=-amx_tile"
        )


def _instructions(file: Path) -> frozenset[str]:
    """Return the instruction sets that Linux reports. Return none where it reports another kind of machine,
    as under an emulator."""
    line = "flags" if platform.machine() == "x86_64" else "Features"
    try:
        text = file.read_text()
    except OSError:
        return frozenset()
    for entry in text.splitlines():
        name, _, words = entry.partition(":")
        if name.strip() == line:
            return frozenset(words.split())
    return frozenset()

"""Candidates as libraries: compiled on one machine, loaded and timed on another.

A packed library is an archive of two files. The shared library comes first, so that the header that says
which machine it is for stands at a fixed place; the manifest tells how its functions are called.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm

from compiler.constants.packing import PackedConstants
from compiler.packaging import archive
from compiler.packaging.archive import ArchiveError
from compiler.packaging.linker import elf_machine

LIBRARY = "candidate.so"
MANIFEST = "manifest.json"
MAX_LIBRARY_BYTES = 32 << 20
MAX_MANIFEST_BYTES = 1 << 20


class LibraryError(ValueError):
    """The bytes are no candidate that can run here; one sentence that says why."""


@dataclass(frozen=True)
class KernelLibrary:
    """A candidate's shared library, the constants that it packs (None for none), its seconds of building."""

    data: bytes
    packed_constants: PackedConstants | None
    build_secs: float

    def pack(self) -> bytes:
        parts = None if self.packed_constants is None else _plain(self.packed_constants)
        manifest = json.dumps({"parts": parts, "build_secs": self.build_secs})
        return archive.pack([(LIBRARY, self.data), (MANIFEST, manifest.encode())])

    @classmethod
    def unpack(cls, packed: bytes) -> KernelLibrary:
        """Raises LibraryError."""
        limits = {LIBRARY: MAX_LIBRARY_BYTES, MANIFEST: MAX_MANIFEST_BYTES}
        try:
            entries = archive.unpack(packed, limits, "library")
            manifest = json.loads(entries[MANIFEST])
            parts = None if manifest["parts"] is None else _packed(manifest["parts"])
            return cls(entries[LIBRARY], parts, float(manifest["build_secs"]))
        except ArchiveError as error:
            raise LibraryError(str(error)) from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LibraryError(f"the library's {MANIFEST} makes no sense: {error}") from error

    def load(self, machine: str) -> Any:
        """Its functions, as an Executable of TVM. Raises LibraryError when it isn't for this `machine`."""
        made_for = elf_machine(self.data)
        if made_for != machine:
            raise LibraryError(f"the library is for {made_for or 'no machine that is known'}, not {machine}")
        with tempfile.TemporaryDirectory(prefix="tunefarm-") as folder:
            path = Path(folder) / LIBRARY
            path.write_bytes(self.data)
            # Once it is loaded, the file is needed no more.
            return tvm.runtime.Executable(tvm.runtime.load_module(str(path)))


def _plain(parts: PackedConstants) -> dict[str, Any]:
    """Without the module that a Split has too."""
    return {"operands": parts.operands, "shapes": parts.shapes, "dtypes": parts.dtypes}


def _packed(parts: dict[str, Any]) -> PackedConstants:
    return PackedConstants(
        operands=tuple(map(int, parts["operands"])),
        shapes=tuple(tuple(map(int, shape)) for shape in parts["shapes"]),
        dtypes=tuple(map(str, parts["dtypes"])),
    )

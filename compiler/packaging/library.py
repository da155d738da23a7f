"""Pack candidates as shared libraries, which are compiled on one machine and timed on another.

A packed library is an archive of two files. The shared library comes first, so the architecture in its ELF
header has a fixed offset. The manifest describes how to call its functions.
"""

from __future__ import annotations

import io
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

from compiler.constants.packing import PackedConstants
from compiler.packaging import archive
from compiler.packaging.archive import ArchiveError
from compiler.packaging.elf import elf_arch
from core.library_check import SymbolError, check_library
from core.measurement import Resources

LIBRARY = "candidate.so"
MANIFEST = "manifest.json"
MAX_LIBRARY_BYTES = 32 << 20
MAX_MANIFEST_BYTES = 1 << 20


class LibraryError(ValueError):
    """The bytes are not a candidate that can run here. The message says why in one sentence."""


@dataclass(frozen=True)
class KernelLibrary:
    """A candidate's shared library, the constants that it packs (None if none), the seconds of its build, and
    the GPU compiler's report on its kernels.
    """

    data: bytes
    packed_constants: PackedConstants | None
    build_s: float
    resources: Resources | None = None

    def pack(self) -> bytes:
        constants = self.packed_constants
        parts = constants and {name: getattr(constants, name) for name in ("operands", "shapes", "dtypes")}
        resources = self.resources and asdict(self.resources)
        manifest = json.dumps({"parts": parts, "build_s": self.build_s, "resources": resources})
        return archive.pack([(LIBRARY, self.data), (MANIFEST, manifest.encode())])

    @classmethod
    def unpack(cls, packed: bytes) -> KernelLibrary:
        """Raises LibraryError."""
        limits = {LIBRARY: MAX_LIBRARY_BYTES, MANIFEST: MAX_MANIFEST_BYTES}
        try:
            entries = archive.unpack(packed, limits, "library")
            manifest = json.loads(entries[MANIFEST])
            parts = manifest["parts"]
            constants = None
            if parts is not None:
                constants = PackedConstants(
                    operands=tuple(map(int, parts["operands"])),
                    shapes=tuple(tuple(map(int, shape)) for shape in parts["shapes"]),
                    dtypes=tuple(map(str, parts["dtypes"])),
                )
            resources = manifest.get("resources") and Resources(**manifest["resources"])
            return cls(entries[LIBRARY], constants, float(manifest["build_s"]), resources)
        except ArchiveError as error:
            raise LibraryError(str(error)) from error
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LibraryError(f"the library's {MANIFEST} is damaged: {error}") from error

    def load(self, arch: str) -> Any:
        """Load the library as a tvm.runtime.Executable. It is unloaded with its last reference. Raises
        LibraryError if it is for another `arch`, or calls functions that no compiled program needs.
        """
        made_for = elf_arch(self.data)
        if made_for != arch:
            raise LibraryError(f"the library is for {made_for or 'an unknown architecture'}, not {arch}")
        try:
            check_library(io.BytesIO(self.data))
        except SymbolError as error:
            raise LibraryError(str(error)) from error
        with tempfile.TemporaryDirectory(prefix="tunefarm-") as folder:
            path = Path(folder) / LIBRARY
            path.write_bytes(self.data)
            # tvm.runtime.load_module would keep the library until the process exits.
            return tvm.runtime.Executable(tvm_ffi.load_module(str(path), keep_module_alive=False))

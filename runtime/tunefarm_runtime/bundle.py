"""Bundles: a compiled model with everything that a C or C++ program needs to run it on a bare Linux."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from pathlib import Path

from tunefarm_runtime.errors import LoadError
from tunefarm_runtime.library import RUNTIME_LIBRARIES, library_folder
from tunefarm_runtime.manifest import Manifest, Tensor

FFI_LIBRARY = "libtvm_ffi.so"
SOURCES = Path(__file__).parent / "c"
LICENSES = Path(__file__).parent / "licenses"
# The headers that tunefarm.c includes.
HEADERS = ("tvm/ffi/c_api.h", "dlpack/dlpack.h")


def make_bundle(model: Path, folder: Path) -> None:
    """Write the bundle of a compiled CPU model of one shape into a new or empty folder.

    It holds `model.so`, its manifest, and a description of inputs and outputs (`model.txt`). For C and C++ it
    holds `tunefarm.h`, `tunefarm.hpp`, their source, and an example with a CMakeLists.txt. `lib` has the
    runtime libraries for the machine that the model was compiled for. Raises LoadError where one of these is
    missing, or OSError.
    """
    manifest = Manifest.read(model)
    if manifest.device == "cuda":
        raise LoadError(f"{model} was compiled for a GPU, and bundles are for CPUs: run it from Python")
    libraries = _libraries(manifest.arch)
    if folder.exists() and any(folder.iterdir()):
        raise LoadError(f"{folder} isn't empty: name a new folder for the bundle")
    for source in SOURCES.iterdir():
        _copy(source, folder / source.name)
    for name in ("model.so", "manifest.json"):
        _copy(model / name, folder / name)
    for library in libraries:
        _copy(library, folder / "lib" / library.name)
    include = _ffi_folder() / "include"
    for name in HEADERS:
        _copy(include / name, folder / "include" / name)
    for text in LICENSES.glob("*"):
        _copy(text, folder / "licenses" / text.name)
    (folder / "model.txt").write_text(_description(manifest))


def _description(manifest: Manifest) -> str:
    """Return what `tunefarm.c` reads: a line for each input and output."""

    def line(kind: str, tensor: Tensor) -> str:
        return " ".join((kind, _escaped(tensor.name), tensor.dtype, *map(str, tensor.shape)))

    return "\n".join(
        [
            f"threads {manifest.threads}",
            *(line("input", one) for one in manifest.inputs),
            *(line("output", one) for one in manifest.outputs),
            "",
        ]
    )


def _escaped(name: str) -> str:
    """Return a name without white space: spaces and control characters become %XX, as in a URL."""
    return (
        "".join(f"%{ord(char):02X}" if char.isspace() or char < "!" or char == "%" else char for char in name)
        or "%"
    )


def _libraries(arch: str) -> list[Path]:
    """Return the runtime libraries for a kind of machine, such as aarch64. Raises LoadError."""
    names = (FFI_LIBRARY, *RUNTIME_LIBRARIES)
    packaged = Path(__file__).parent / "lib" / arch
    if arch == platform.machine():
        own = library_folder()
        return [_ffi_folder() / "lib" / FFI_LIBRARY, *(own / name for name in RUNTIME_LIBRARIES)]
    if not all((packaged / name).exists() for name in names):
        raise LoadError(
            f"the runtime libraries for {arch} are missing: run `make runtime` in a checkout of tunefarm, "
            "and install the runtime from there"
        )
    return [packaged / name for name in names]


def _ffi_folder() -> Path:
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or not spec.submodule_search_locations:
        raise LoadError("the package apache-tvm-ffi is missing: install tunefarm-runtime again")
    return Path(spec.submodule_search_locations[0])


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)

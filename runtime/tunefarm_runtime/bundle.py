"""Bundles: a compiled model with everything that a C or C++ program needs to run it on a bare Linux."""

from __future__ import annotations

import importlib.util
import platform
import shutil
from pathlib import Path

from tunefarm_runtime.errors import LoadError
from tunefarm_runtime.library import RUNTIME_LIBRARIES, library_folder
from tunefarm_runtime.manifest import TILES, Manifest, Tensor
from tunefarm_runtime.signature import SIGNATURE
from tunefarm_runtime.weights import whole

FFI_LIBRARY = "libtvm_ffi.so"
SOURCES = Path(__file__).parent / "c"
LICENSES = Path(__file__).parent / "licenses"
DESCRIPTION = "model.txt"
LIBRARY, MANIFEST = "model.so", "manifest.json"
# The headers that tunefarm.c includes.
HEADERS = ("tvm/ffi/c_api.h", "dlpack/dlpack.h")


def make_bundle(model: Path, folder: Path) -> None:
    """Write the bundle of a compiled CPU model of one shape into a new or empty folder.

    It holds the model's own files and the files of `companions`. Raises LoadError where one is missing, and
    OSError.
    """
    manifest = Manifest.read(model)
    files = companions(manifest)
    if folder.exists() and any(folder.iterdir()):
        raise LoadError(f"{folder} isn't empty: name a new folder for the bundle")
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if (model / SIGNATURE).exists():
            _copy(model / SIGNATURE, folder / SIGNATURE)
        for name, source in files.items():
            _copy(source, folder / name)
        with (folder / LIBRARY).open("wb") as library:
            library.writelines(whole(model / LIBRARY))
        # Nothing loads a folder without these.
        (folder / DESCRIPTION).write_bytes(describe(manifest))
        _copy(model / MANIFEST, folder / MANIFEST)
    except BaseException:
        _empty(folder)
        if is_new:
            folder.rmdir()
        raise


def companions(manifest: Manifest) -> dict[str, Path]:
    """Return the files of a bundle that don't depend on the model, by their names in it.

    They are `tunefarm.h` and `tunefarm.hpp`, their source, an example with a CMakeLists.txt, and licenses.
    `lib` has the runtime libraries for the machine that the model was compiled for. Raises LoadError where
    one is missing.
    """
    if manifest.device == "cuda":
        raise LoadError(
            f"{manifest.folder} was compiled for a GPU, and bundles are for CPUs: run it from Python"
        )
    include = _ffi_folder() / "include"
    files = {source.name: source for source in sorted(SOURCES.iterdir())}
    files |= {f"lib/{library.name}": library for library in _libraries(manifest.arch)}
    files |= {f"include/{name}": include / name for name in HEADERS}
    return files | {f"licenses/{text.name}": text for text in sorted(LICENSES.glob("*"))}


def describe(manifest: Manifest) -> bytes:
    """Return the content of `model.txt`, which `tunefarm.c` reads: a line for each input and output.

    `tiles` says that Linux must permit AMX.

    A decoder's inputs that `tunefarm.c` keeps are its state: the number of earlier tokens, then the cache.
    `cache` has its numbers of tokens, and the axis of the rows of each buffer.
    """
    cache = manifest.cache
    state = set() if cache is None else {cache.position, *cache.buffers}
    buffers = {} if cache is None else cache.buffers
    axes = [buffers[one.name] for one in manifest.inputs if one.name in buffers]

    def line(kind: str, tensor: Tensor) -> str:
        return " ".join((kind, _escaped(tensor.name), tensor.dtype, *map(str, tensor.shape)))

    return "\n".join(
        [
            f"threads {manifest.threads}",
            *(["tiles"] if TILES in manifest.instructions else []),
            *([] if cache is None else [" ".join(map(str, ("cache", cache.capacity, cache.count, *axes)))]),
            *(line("state" if one.name in state else "input", one) for one in manifest.inputs),
            *(line("output", one) for one in manifest.outputs),
            "",
        ]
    ).encode()


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


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)

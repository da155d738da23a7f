"""Build the wheels of tunefarm-runtime for x86-64 and aarch64: `make runtime`.

The shared libraries come from the wheels of the pinned release of TVM, with their licenses. They are kept in
`tunefarm_runtime/lib`, where bundles for other machines find them.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

HERE = Path(__file__).parent
PACKAGE = HERE / "tunefarm_runtime"
ARCHS = ("x86_64", "aarch64")
# The oldest C library that the wheels of TVM run with.
PLATFORM = "manylinux_2_28"
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014")
TVM_LIBRARIES = ("libtvm_runtime.so", "libtvm_runtime_extra.so", "libtvm_runtime_cuda.so")
# pip installs it with apache-tvm-ffi; only bundles for other machines take it from here.
FFI_LIBRARY = "libtvm_ffi.so"


def pinned(name: str, constraints: Path) -> str:
    """Return `NAME==VERSION` from a constraints file. Raises SystemExit where it isn't pinned."""
    for line in constraints.read_text().splitlines():
        if line.startswith(f"{name}=="):
            return line.strip()
    raise SystemExit(f"{constraints} doesn't pin {name}")


def download(requirement: str, arch: str, folder: Path) -> Path:
    """Download the wheel of a package for a kind of machine."""
    platforms = [flag for name in PLATFORMS for flag in ("--platform", f"{name}_{arch}")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", "3.11", "--implementation", "cp", *platforms]
    subprocess.run([*command, "--dest", str(folder), requirement], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def unpack(wheel: Path, names: tuple[str, ...], folder: Path) -> None:
    """Copy the shared libraries of these names out of a wheel, and its licenses into `licenses`."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.namelist():
            path = PurePosixPath(entry)
            if path.name in names:
                target = folder / path.name
            elif path.name in ("LICENSE", "NOTICE") and ".dist-info" in entry:
                target = PACKAGE / "licenses" / f"{wheel.name.partition('-')[0]}-{path.name}"
            else:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(entry))


def build(arch: str, output: Path, libraries_of: Sequence[str]) -> None:
    """Build the wheel for a kind of machine from a copy that holds the libraries of some kinds."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "runtime"
        left_out = [one for one in ARCHS if one not in libraries_of] + ["*.egg-info", "build"]
        if len(libraries_of) == 1:
            left_out.append(FFI_LIBRARY)
        shutil.copytree(HERE, copy, ignore=shutil.ignore_patterns(*left_out))
        setting = f"--build-option=--plat-name={PLATFORM}_{arch}"
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--config-settings", setting]
        subprocess.run([*command, "--wheel-dir", str(output), str(copy)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the wheels of tunefarm-runtime.")
    parser.add_argument("--constraints", type=Path, default=HERE.parent / "constraints.txt")
    parser.add_argument("--output", type=Path, default=HERE.parent / "build" / "runtime")
    parser.add_argument("--arch", choices=ARCHS, action="append", help="only for this processor architecture")
    parser.add_argument(
        "--for-service", action="store_true", help="one wheel for this machine, which bundles for all kinds"
    )
    args = parser.parse_args()
    wheels = args.arch or ([platform.machine()] if args.for_service else ARCHS)
    for arch in ARCHS if args.for_service else wheels:
        folder = PACKAGE / "lib" / arch
        for name, libraries in (("apache-tvm", TVM_LIBRARIES), ("apache-tvm-ffi", (FFI_LIBRARY,))):
            if not all((folder / library).exists() for library in libraries):
                with tempfile.TemporaryDirectory() as scratch:
                    wheel = download(pinned(name, args.constraints), arch, Path(scratch))
                    unpack(wheel, libraries, folder)
    for arch in wheels:
        build(arch, args.output, ARCHS if args.for_service else [arch])
    for wheel in sorted(args.output.glob("*.whl")):
        print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

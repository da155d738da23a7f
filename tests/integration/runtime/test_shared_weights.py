"""The sizes of a model store their weights once, and a process maps them once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import tvm
import tvm_ffi
from tunefarm_runtime import LoadError, load
from tunefarm_runtime.bundle import make_bundle
from tunefarm_runtime.library import load_runtime
from tunefarm_runtime.weights import MappedWeights, whole
from tvm import relax

from compiler.importing.model import fuse_untuned, read_onnx
from compiler.packaging.artifact import Manifest, build_library, write
from compiler.packaging.linker import find_linker, link_library
from compiler.target import detect_device, host_triple
from core.library_weights import (
    APART,
    FOLDER,
    WHOLE,
    WeightsError,
    open_whole,
    read_index,
    remove_unused,
    set_apart,
)
from system.signing import SigningKey
from tests.onnx_models import products
from tunefarm.client.artifact import unpack
from tunefarm.client.sizes import sizes_of

EXTENT, LAYERS, SIZES = 1024, 4, (1, 2, 3, 4)
WEIGHT_BYTES = LAYERS * EXTENT * EXTENT * 4
MAPPED = """
import sys
from pathlib import Path
import numpy as np, tunefarm_runtime

def resident():
    # /proc/self/status lags behind: each processor adds its share later.
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Rss:"))

found = {}
for folder, sizes in (("warm", [1]), ("net", [1]), ("more", [1, 2, 3, 4])):
    model, before = tunefarm_runtime.load(Path(sys.argv[1]) / folder), resident()
    for rows in sizes:
        model(np.ones((rows, model.inputs[0].shape[1]), "float32"))
    found[folder] = model, resident() - before
print(found["net"][1], found["more"][1])
"""


def write_size(model: bytes, folder: Path, shapes: dict[str, tuple[int, ...]], key: SigningKey) -> None:
    """Compile, sign and unpack a size, as publishing and the client do."""
    device, imported = detect_device(1), read_onnx(model, shapes)
    library, archive = folder / ".built.so", folder / ".artifact.tar"
    folder.mkdir(parents=True)
    build_library(fuse_untuned(imported, device.target), device.target, library)
    manifest = Manifest("net", "sha", device.target, "cafe", imported.inputs, imported.outputs, 1, {}, 0.0)
    with library.open("rb") as file, archive.open("wb") as packed:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        write(packed, file, dataclasses.replace(manifest, library_sha256=digest), sign=key.sign)
    unpack(archive, folder, weights=folder.parent / FOLDER)
    library.unlink()
    archive.unlink()


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory, key: SigningKey) -> Path:
    """A model in one size in the folders `warm` and `net`, and in four sizes in `more`."""
    root = tmp_path_factory.mktemp("sizes")
    data = products("rows", EXTENT, LAYERS)
    (root / "net.onnx").write_bytes(data)
    for folder, extents in (("net", SIZES[:1]), ("more", SIZES)):
        [chosen] = sizes_of([root / "net.onnx"], {"rows": extents})
        for size in chosen:
            write_size(data, root / folder / f"rows={size.shapes['input'][0]}", size.shapes, key)
    small = products()
    write_size(small, root / "warm" / "only", {"input": (1, 128)}, key)
    return root


@pytest.fixture
def copied(sizes: Path, tmp_path: Path) -> Path:
    """The model in four sizes, to be damaged."""
    return Path(shutil.copytree(sizes / "more", tmp_path / "copied"))


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_four_sizes_store_the_weights_once(sizes: Path, key: SigningKey) -> None:
    one, four = bytes_in(sizes / "net"), bytes_in(sizes / "more")
    assert WEIGHT_BYTES < one < 1.1 * WEIGHT_BYTES
    assert four < 1.1 * WEIGHT_BYTES
    assert len(list((sizes / "more" / FOLDER).iterdir())) == LAYERS
    model = load(sizes / "more", trusted=key.public)
    session = onnxruntime.InferenceSession(
        products("rows", EXTENT, LAYERS), providers=["CPUExecutionProvider"]
    )
    for rows in SIZES:
        data = np.random.default_rng(rows).standard_normal((rows, EXTENT), dtype=np.float32)
        (found,) = model(data)
        np.testing.assert_allclose(found, session.run(None, {"input": data})[0], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory a process has taken")
def test_sizes_share_the_memory_of_their_weights(sizes: Path) -> None:
    command = [sys.executable, "-c", MAPPED, str(sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    one, four = (int(word) / WEIGHT_BYTES for word in done.stdout.split())
    assert 0.9 < one < 1.3
    assert four < 1.3  # a copy for each size: 8


def test_bundles_and_verification_get_a_size_with_its_weights(copied: Path, tmp_path: Path) -> None:
    size = copied / "rows=2"
    make_bundle(size, tmp_path / "bundle")
    with open_whole(size / "model.so") as whole, (tmp_path / "bundle" / "model.so").open("rb") as bundled:
        content = whole.read()
        assert content == bundled.read()
        index = read_index(bundled)
    assert not index.is_apart
    assert (
        hashlib.sha256(content).hexdigest()
        == json.loads((size / "manifest.json").read_text())["library_sha256"]
    )
    ones = np.ones((2, EXTENT), np.float32)
    np.testing.assert_array_equal(load(tmp_path / "bundle")(ones)[0], load(copied)(ones)[0])


def test_weights_that_are_damaged_are_refused(copied: Path, key: SigningKey) -> None:
    weight = next((copied / FOLDER).iterdir())
    content = bytearray(weight.read_bytes())
    content[0] ^= 1
    weight.write_bytes(content)
    with pytest.raises(LoadError, match="isn't the file that was signed"):
        load(copied, trusted=key.public)
    weight.write_bytes(content[:4096])
    ones = np.ones((1, EXTENT), np.float32)
    with pytest.raises(LoadError, match=f"{weight.name} is cut short: download the model again"):
        load(copied)(ones)
    weight.unlink()
    with pytest.raises(
        LoadError, match="is missing: keep the folder weights beside the folders of the sizes"
    ):
        load(copied)(ones)


@pytest.mark.parametrize("magic", [WHOLE, APART])
@pytest.mark.parametrize(
    ("text", "length"),
    [
        (b"", 1 << 63),
        (b"", 100),
        (b"x\n", 2),
        (b"9" * 5000 + b"\n", 5001),
        (b"-1\n", 3),
        (b"1000\n", 5),
        (b"%d\n" % (10**4000) + b"a" * 64 + b" float32 64 4 4\n", 0),
        (b"4\n" + b"a" * 64 + b" float32 64 %d 4\n" % (1 << 65), 0),
        (b"4\n" + b"a" * 64 + b" float32 %d 4 4\n" % (1 << 70), 0),
    ],
)
def test_an_index_that_makes_no_sense_is_refused(
    magic: bytes, text: bytes, length: int, tmp_path: Path
) -> None:
    file = tmp_path / "model.so"
    file.write_bytes(b"\x7fELF" + text + magic + (length or len(text)).to_bytes(8, "little"))
    with pytest.raises(LoadError, match=r"download the model again|is missing"):
        list(whole(file))
    with file.open("rb") as opened, pytest.raises(WeightsError, match="is damaged"):
        read_index(opened)
    file.write_bytes(magic + b"short")  # shorter than the end of a file with weights
    assert b"".join(whole(file)) == magic + b"short"
    with file.open("rb") as opened:
        assert read_index(opened).weights == ()


@pytest.mark.parametrize(
    "line",
    [
        b"../x float32 64 64 16",
        b"a" * 64 + b" float32 64 64 17",
        b"a" * 64 + b" float32 64 64 %d 8" % (1 << 62),
        b"a" * 64 + b" float32 64 64 -1",
        b"a" * 64 + b" float32 60 64 16",
        b"a" * 64 + b" nosuch 64 64 16",
    ],
)
def test_a_weight_that_makes_no_sense_is_not_mapped(line: bytes, tmp_path: Path) -> None:
    load_runtime(cuda=False)
    file, text = tmp_path / "model.so", b"4\n" + line + b"\n"
    file.write_bytes(b"\x7fELF" + bytes(124) + text + WHOLE + len(text).to_bytes(8, "little"))
    with pytest.raises(LoadError, match=r"model\.so is damaged: download the model again"):
        MappedWeights().of(file)


@pytest.mark.parametrize("changed", ["libraries", "weights"])
def test_weights_changed_after_the_check_are_not_used(
    sizes: Path, copied: Path, key: SigningKey, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are changed when a signed library has been checked, right before it is loaded."""
    model, load_module = load(copied, trusted=key.public), tvm_ffi.load_module
    ones = np.ones((1, EXTENT), np.float32)
    expected = load(sizes / "more")(ones)[0]

    def change(path: str) -> object:
        files = copied.glob("*/model.so") if changed == "libraries" else (copied / FOLDER).iterdir()
        for file in files:
            file.write_bytes(bytes(file.stat().st_size))
        return load_module(path)

    monkeypatch.setattr(tvm_ffi, "load_module", change)
    np.testing.assert_array_equal(model(ones)[0], expected)
    wrong = "isn't the file that was signed"
    if changed == "libraries":
        with pytest.raises(LoadError, match=wrong):
            model(np.ones((2, EXTENT), np.float32))
    else:  # the copies of the weights are shared with the other sizes
        assert np.isfinite(model(np.ones((2, EXTENT), np.float32))[0]).all()
    with pytest.raises(LoadError, match=wrong):
        load(copied, trusted=key.public)


FORKED = """
import os, sys
from pathlib import Path
from tunefarm_runtime.weights import Weight, _copy
copy = _copy(Weight(Path(sys.argv[1]), 0, 4, "uint8", (4,)))
if not (child := os.fork()):
    copy[:] = 0
    os._exit(0)
os.waitpid(child, 0)
print(bytes(copy).decode())
"""


def test_a_fork_does_not_change_checked_weights(tmp_path: Path) -> None:
    (tmp_path / "weight").write_text("good")
    command = [sys.executable, "-c", FORKED, str(tmp_path / "weight")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "good\n"


def test_a_weight_that_is_damaged_on_disk_is_written_again(copied: Path, tmp_path: Path) -> None:
    size, weight = copied / "rows=2", next((copied / FOLDER).iterdir())
    with open_whole(size / "model.so") as whole:
        (tmp_path / "model.so").write_bytes(whole.read())
    content = weight.read_bytes()
    weight.write_bytes(bytes(len(content)))
    set_apart(tmp_path / "model.so", copied / FOLDER)
    assert weight.read_bytes() == content


def test_unused_weights_are_removed(copied: Path) -> None:
    shared = copied / FOLDER
    (shared / f".{'0' * 64}.new").write_bytes(b"cut sh")
    remove_unused(shared)
    assert len(list(shared.iterdir())) == LAYERS
    own = {shared / "best.pt", shared / "epochs"}  # a user's files, in a folder of this name
    (shared / "best.pt").write_bytes(b"trained")
    (shared / "epochs").mkdir()
    for size in copied.glob("rows=*"):
        damaged = (size / "model.so").read_bytes()[:-8] + (1 << 40).to_bytes(8, "little")
        (size / "model.so").write_bytes(damaged)
    remove_unused(shared)
    assert len(list(shared.iterdir())) == LAYERS + len(own)
    for size in copied.glob("rows=*"):
        shutil.rmtree(size)
    remove_unused(shared)
    assert set(shared.iterdir()) == own


def test_a_damaged_end_of_a_library_is_refused(copied: Path, tmp_path: Path) -> None:
    with open_whole(copied / "rows=1" / "model.so") as file:
        right = file.read()
        [first, *_] = read_index(file).weights
    damaged = {
        "length": right[:-8] + (1 << 40).to_bytes(8, "little"),
        "name": right.replace(first.sha256.encode(), b"../" + first.sha256.encode()[3:]),
        "place": right.replace(f" {first.offset} ".encode(), f" {first.offset + 64} ".encode()),
        "cut": right[:4096] + right[8192:],
    }
    for name, content in damaged.items():
        library = tmp_path / f"{name}.so"
        library.write_bytes(content)
        with pytest.raises(WeightsError, match="the index of the library's weights is damaged"):
            set_apart(library, tmp_path / name)
    other = tmp_path / "other.so"
    other.write_bytes(right[: first.offset] + bytes(64) + right[first.offset + 64 :])
    with pytest.raises(WeightsError, match="a weight doesn't have its SHA-256"):
        set_apart(other, tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())


def test_a_library_that_holds_its_constants_still_runs(tmp_path: Path) -> None:
    """Libraries built by older versions hold their constants themselves."""
    device, imported = detect_device(1), read_onnx(products(), {})
    target = tvm.target.Target(json.loads(device.target))
    built = relax.build(fuse_untuned(imported, device.target), target)
    link_library(built, host_triple(target), find_linker(host_triple(target)), tmp_path / "model.so")
    manifest = Manifest("net", "sha", device.target, "cafe", imported.inputs, imported.outputs, 1, {}, 0.0)
    (tmp_path / "manifest.json").write_text(manifest.to_json())
    with (tmp_path / "model.so").open("rb") as file:
        assert not read_index(file).weights
    data = np.random.default_rng(0).standard_normal((1, 128), dtype=np.float32)
    session = onnxruntime.InferenceSession(products(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(
        load(tmp_path)(data)[0], session.run(None, {"input": data})[0], rtol=1e-4, atol=1e-5
    )

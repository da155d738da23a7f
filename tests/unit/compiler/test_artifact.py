from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.importing.model import extract_tasks, fuse, read_onnx
from compiler.packaging import artifact
from compiler.packaging.artifact import (
    ArtifactError,
    Manifest,
    build_library,
    open_reference,
    pack,
    unpack,
)
from tests.compiled import build_module
from tests.manifests import MANIFEST, TARGET
from tests.onnx_models import two_outputs


def _tar(entries: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for entry, data in entries:
            entry.size = len(data) if entry.isreg() else 0
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _link(name: str, target: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry


def test_packing_and_unpacking_changes_nothing() -> None:
    assert unpack(pack(b"\x7fELF", MANIFEST)) == (b"\x7fELF", MANIFEST)


def test_equal_contents_pack_to_equal_bytes() -> None:
    assert pack(b"library", MANIFEST) == pack(b"library", dataclasses.replace(MANIFEST))


def test_a_reference_is_packed_beside_the_library() -> None:
    packed = pack(b"library", MANIFEST, b"reference")
    assert unpack(packed) == (b"library", MANIFEST)
    reference = open_reference(io.BytesIO(packed))
    assert reference is not None
    assert reference.read() == b"reference"
    assert open_reference(io.BytesIO(pack(*unpack(packed)))) is None
    with pytest.raises(ArtifactError, match="damaged"):
        open_reference(io.BytesIO(packed[:600]))


def test_a_plain_tar_holds_the_two_files() -> None:
    with tarfile.open(fileobj=io.BytesIO(pack(b"library", MANIFEST))) as tar:
        assert tar.getnames() == ["manifest.json", "model.so"]


GOOD = (tarfile.TarInfo("manifest.json"), MANIFEST.to_json().encode())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "damaged"),
        (b"not a tar at all" * 100, "damaged"),
        (pack(b"x" * 5000, MANIFEST)[:4000], "damaged"),
        (_tar([GOOD]), r"holds no model\.so"),
        (_tar([(tarfile.TarInfo("model.so"), b"x")]), r"holds no manifest\.json"),
        (_tar([GOOD, (tarfile.TarInfo("../model.so"), b"x")]), r"holds no model\.so"),
        (_tar([GOOD, (_link("model.so", "/etc/passwd"), b"")]), "more than plain files"),
        (_tar([(tarfile.TarInfo("manifest.json"), b"{"), (tarfile.TarInfo("model.so"), b"x")]), "damaged"),
        (_tar([(tarfile.TarInfo("manifest.json"), b"\xff"), (tarfile.TarInfo("model.so"), b"x")]), "damaged"),
    ],
)
def test_other_bytes_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        unpack(data)


def test_an_entry_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "MAX_LIBRARY_BYTES", 3)
    with pytest.raises(ArtifactError, match="at most 3 bytes"):
        unpack(pack(b"four", MANIFEST))


@settings(max_examples=100)
@given(position=st.integers(0, 4095), value=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_changes_only_that_byte(position: int, value: int) -> None:
    data = bytearray(pack(b"library", MANIFEST))
    data[position] = value
    try:
        library, manifest = unpack(bytes(data))
    except ArtifactError:
        return
    assert sum(a != b for a, b in zip(library, b"library", strict=True)) <= 1
    assert unpack(pack(library, manifest)) == (library, manifest)


@pytest.mark.parametrize(
    "change",
    [
        {"threads": 0},
        {"threads": "2"},
        {"inputs": [{"name": "x"}]},
        {"tasks": 5},
        {"surprise": 1},
        {"tuned_s": None},
    ],
)
def test_a_manifest_of_another_form_is_refused(change: dict[str, object]) -> None:
    data = json.loads(MANIFEST.to_json()) | change
    with pytest.raises(ArtifactError, match="damaged or of another version"):
        Manifest.from_json(json.dumps(data))


def test_a_manifest_of_an_older_version_is_read() -> None:
    data = json.loads(MANIFEST.to_json())
    del data["published_s"]
    assert Manifest.from_json(json.dumps(data)) == MANIFEST


def test_without_a_linker_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ArtifactError, match="install gcc or clang"):
        build_library(fuse(read_onnx(two_outputs(), {}), TARGET), TARGET, tmp_path / "model.so")


def test_a_trace_that_does_not_apply_is_an_artifact_error(tmp_path: Path) -> None:
    fused = fuse(read_onnx(two_outputs(), {}), TARGET)
    trace = '[[["GetSBlock",[],["no_such_block","main"],["b0"]]],[]]'
    schedules = {task.workload_hash: trace for task in extract_tasks(fused)}
    with pytest.raises(ArtifactError, match=r"the schedule of .* doesn't apply"):
        build_module(fused, schedules, TARGET, tmp_path / "model.so")

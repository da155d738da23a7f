"""What a model does to the compiler, it does in a child process."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from compiler import contained
from compiler.contained import Limits, try_model
from compiler.spec import ModelError
from tests.onnx_models import Builder, residual

TARGET = '{"kind":"llvm","num-cores":2}'


def test_a_good_model_passes() -> None:
    try_model(residual(batch="n"), {"input": (2, 3, 8, 8)}, TARGET)


def test_what_the_import_says_comes_through() -> None:
    with pytest.raises(ModelError, match="--shape input="):
        try_model(residual(batch="n"), {}, TARGET)


def test_an_import_that_takes_too_long_is_ended() -> None:
    start = time.monotonic()
    with pytest.raises(ModelError, match=r"takes longer than 0\.2 s"):
        try_model(residual(), {}, TARGET, Limits(timeout_s=0.2))
    assert time.monotonic() - start < 5


def test_an_import_that_takes_too_much_memory_is_ended() -> None:
    with pytest.raises(ModelError, match=r"^importing the model "):
        try_model(residual(), {}, TARGET, Limits(memory_bytes=200 << 20))


def test_a_small_file_takes_no_gigabytes() -> None:
    b = Builder()
    begin, end, step = (b.constant(np.int64(number)) for number in (0, 1 << 28, 1))
    data = b.model({"input": [1]}, {b.op("Range", begin, end, step): [1 << 28]})
    assert len(data) < 500
    with pytest.raises(ModelError, match=r"Unable to allocate|too much memory"):
        try_model(data, {}, TARGET)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", r"crashed the compiler \(SIGSEGV\)"),
        ("raise SystemExit(3)", r"ended the compiler \(exit status 3\)"),
        ("print('TVM was here')", r"ended the compiler \(exit status 0\)"),
    ],
)
def test_a_child_that_dies_is_a_model_error(
    script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{script}"\n')
    python.chmod(0o755)
    monkeypatch.setattr(contained.sys, "executable", str(python))
    with pytest.raises(ModelError, match=message):
        try_model(residual(), {}, TARGET)


def test_a_huge_file_starts_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contained, "MAX_FILE_BYTES", 10)
    monkeypatch.setattr(contained.sys, "executable", "/no/such/python")
    with pytest.raises(ModelError, match="the limit is 10"):
        try_model(residual(), {}, TARGET)

"""Wrong values of options are refused in one sentence that names the cause."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from core.exit_code import ExitCode
from system.command import CommandError
from tunefarm.cli.options import checked_minutes, checked_model, parsed_shapes, prepared_output
from tunefarm.errors import InputError


def test_shapes_are_read_by_input_name() -> None:
    assert parsed_shapes(["image=1,3,224,224", "a=b=7"]) == {"image": (1, 3, 224, 224), "a=b": (7,)}


@pytest.mark.parametrize("flag", ["", "x", "x=", "=1,2", "x=1,,2", "x=1,0", "x=-1", "x=1.5", "x=a,b"])
def test_a_shape_that_is_no_shape_is_refused(flag: str) -> None:
    with pytest.raises(CommandError, match="NAME=1,3,224,224") as refused:
        parsed_shapes([flag])
    assert refused.value.code is ExitCode.USAGE


def test_a_second_shape_for_an_input_is_refused() -> None:
    with pytest.raises(CommandError, match="given twice for 'x'"):
        parsed_shapes(["x=1", "x=2"])


@pytest.mark.parametrize("minutes", [0.0, -1.0, math.nan, math.inf])
def test_a_budget_of_minutes_is_positive(minutes: float) -> None:
    with pytest.raises(CommandError, match="more than 0"):
        checked_minutes(minutes)


def test_a_model_is_a_file_that_is_not_empty(tmp_path: Path) -> None:
    empty = tmp_path / "empty.onnx"
    empty.touch()
    for path, cause in ((tmp_path / "none.onnx", "no file"), (tmp_path, "is a folder"), (empty, "is empty")):
        with pytest.raises(InputError, match=cause):
            checked_model(path)
    empty.write_bytes(b"x")
    assert checked_model(empty) == empty


def test_an_output_folder_under_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match="--output DIR") as refused:
        prepared_output(tmp_path / "file" / "out")
    assert refused.value.code is ExitCode.LOCAL
    assert prepared_output(tmp_path / "a" / "b").is_dir()

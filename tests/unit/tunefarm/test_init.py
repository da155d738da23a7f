"""`tunefarm init`: the file of settings that it writes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from core.exit_code import ExitCode
from tunefarm.cli.app import app, run
from tunefarm.cli.init import config_text
from tunefarm.settings import CommandSettings, load


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("TUNEFARM_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "folder" / "config.toml"
    monkeypatch.setenv("TUNEFARM_CONFIG", str(file))
    return file


def test_the_initial_config_has_default_values_and_is_private(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = load()
    assert run(app, ["init"]) == ExitCode.OK
    assert str(config) in capsys.readouterr().out
    assert config.read_text() == config_text()
    assert config.stat().st_mode & 0o777 == 0o600
    assert load() == before


def test_every_setting_is_in_the_file_with_a_sentence_and_a_value_that_fits(config: Path) -> None:
    pairs = re.findall(r"^# ([A-Z].*\.)\n# (\w+) = (.+)$", config_text(), re.MULTILINE)
    assert [name for _, name, _ in pairs] == list(CommandSettings.model_fields)
    config.parent.mkdir()
    config.write_text("".join(f"{name} = {value}\n" for _, name, value in pairs))
    settings = load()
    assert all(getattr(settings, name) is not None for name in CommandSettings.model_fields)
    assert settings.port == 8760


def test_a_file_that_is_there_is_kept(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.parent.mkdir()
    config.write_text("port = 1\n")
    assert run(app, ["init"]) == ExitCode.LOCAL
    assert f"{config} is there already: edit it" in capsys.readouterr().err
    assert config.read_text() == "port = 1\n"


def test_a_folder_that_cannot_be_created_is_reported(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.parent.write_text("a file")
    assert run(app, ["init"]) == ExitCode.LOCAL
    assert "set TUNEFARM_CONFIG to another file" in capsys.readouterr().err

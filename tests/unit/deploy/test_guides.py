"""The documents name only commands, flags, settings and files that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from core.exit_code import ExitCode
from scheduler.main import scheduler
from server.main import server
from system.command import run_function
from tunefarm.cli.app import app, run
from worker import main as worker_main
from worker.settings import WorkerSettings

ROOT = Path(__file__).parents[3]
GUIDES = sorted((ROOT / "docs/devices").glob("*.md"))
DOCUMENTS = sorted({*GUIDES, ROOT / "README.md", *(ROOT / "docs").glob("*.md")})
PROCESSES: dict[str, Callable[..., object]] = {"server": server, "scheduler": scheduler}
SUBCOMMANDS = {"token", "workers"}

guides = pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
documents = pytest.mark.parametrize("guide", DOCUMENTS, ids=lambda path: path.stem)


def commands(guide: Path) -> list[list[str]]:
    """The words after `tunefarm` of every command, in blocks and in lines."""
    blocks = re.findall(r"^```(?:sh.*)?\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`(tunefarm [^`\n]*)`", guide.read_text())
    found = (re.search(r"(?:^|^[\w./-]+/|; )tunefarm ([a-z-].+)", line) for line in lines)
    # What follows a bar is another command of its kind.
    texts = [match[1].partition(" | ")[0] for match in found if match is not None]
    return [shlex.split(text, comments=True) for text in texts]


def help_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    # Commands that another process takes the place of.
    if words[0] == "worker":
        assert worker_main.main(["--help"]) == ExitCode.OK
    elif words[0] in PROCESSES:
        assert run_function(PROCESSES[words[0]], words[0], ["--help"]) == ExitCode.OK
    else:
        names_one = words[0] in SUBCOMMANDS and len(words) > 1 and not words[1].startswith("-")
        path = words[: 2 if names_one else 1]
        assert run(app, [*path, "--help"]) == ExitCode.OK, path
    return capsys.readouterr().out


@guides
def test_a_guide_says_what_to_run(guide: Path) -> None:
    assert len(commands(guide)) >= 4


@documents
def test_every_command_and_flag_exists(guide: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands(guide):
        said = help_of(words, capsys)
        for flag in (word for word in words if word.startswith("--")):
            assert flag in said, f"{guide.name}: {words}"


@guides
def test_every_setting_and_file_exists(guide: Path) -> None:
    text = guide.read_text()
    for name in re.findall(r"TUNEFARM_WORKER_([A-Z_]+)\b", text):
        assert name.lower() in WorkerSettings.model_fields, name
    for path in re.findall(r"\bdeploy/[\w./-]+|(?<=\]\()[\w./-]+\.md", text):
        assert (ROOT / path).exists() or (guide.parent / path).exists(), path


def test_there_is_one_for_each_kind_of_device() -> None:
    assert {guide.stem for guide in GUIDES} == {"raspberry-pi", "jetson", "gpu-host", "x86-server"}

"""Every command in the documents exists: the program that it names, if it is ours, parses it. Commands
outside PARSED are also run, in tests/acceptance/test_tutorial.py.
"""

from __future__ import annotations

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.document_commands import (
    DOCUMENTS,
    EXCEPTED,
    PARSED,
    check,
    commands,
    is_routed,
    with_arguments,
)
from tests.marks import slow_except


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_every_command_exists(document: Path) -> None:
    for command in commands(document):
        try:
            check(command)
        except (AssertionError, ValueError, pytest.fail.Exception) as error:
            pytest.fail(f"{document.name}: {command.text}: {error}")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_every_route_exists(document: Path) -> None:
    named = re.findall(r"`(GET|POST|DELETE) (/[^`\s]*)`", document.read_text())
    assert [one for one in named if not is_routed(*one)] == []


def test_every_command_that_is_only_parsed_is_in_the_documents() -> None:
    texts = {command.text for document in DOCUMENTS for command in commands(document)}
    assert [begin for begin in PARSED if not any(text.startswith(begin) for text in texts)] == []


def test_every_exception_is_of_a_command_in_the_documents() -> None:
    assert {command.text for document in DOCUMENTS for command in commands(document)} >= set(EXCEPTED)


class Parsed(Exception):
    """Raised after the arguments were parsed."""


@pytest.mark.parametrize(
    "command", slow_except(with_arguments(), "examples.make_models mobilenet_v2 --out mobilenet_v2.onnx")
)
def test_modules_understand_their_arguments(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, *arguments = shlex.split(command)
    parse = argparse.ArgumentParser.parse_args

    def parse_only(*given: Any, **named: Any) -> None:
        parse(*given, **named)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    found = import_module(module)
    program = import_module(f"{module}.__main__") if hasattr(found, "__path__") else found
    with pytest.raises(Parsed):
        program.main(arguments)


def test_an_unknown_command_in_a_page_is_found(tmp_path: Path) -> None:
    broken = [
        "tunefarm tune model.onnx --trails 3",
        "tunefarm tuna model.onnx",
        "tunefarm worker --sever HOST:8761",
        "tunefarm wach JOB",
        "curl -fsS http://HOST:8760/instal -o install",
        "pip install '.[al]'",
        "make tests",
        "sudo sh tunefarm-install --nam pi",
        "export TUNEFARM_TOKN=x",
        "docker compose logs schedule",
        "helm upgrade --install tunefarm deploy/hel",
        "python -m benchmarcs",
        "somethingelse --flag",
    ]
    document = tmp_path / "page.md"
    document.write_text("```\n" + "\n".join(broken) + "\n```\n")
    for command in commands(document):
        try:
            check(command)
        except (AssertionError, pytest.fail.Exception):
            broken = [text for text in broken if command.words[-1] not in text]
    assert broken == []

"""The service and the worker's agent never execute data: no pickle, no evaluation, no shell. Exceptions are
listed with their reasons.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu.exceptions import ContentDisallowed

from scheduler.app import QUEUE, make_app

ROOT = Path(__file__).parents[2]
PACKAGES = ("server", "records", "scheduler", "proto", "worker", "core", "system", "sandbox")
MODULES = {
    *("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "jsonpickle"),
    *("code", "codeop", "runpy", "ctypes", "cffi", "yaml", "imp"),
}
CALLS = {
    *(
        "eval",
        "exec",
        "compile",
        "__import__",
        "import_module",
        "spec_from_file_location",
        "SourceFileLoader",
    ),
    *("CDLL", "load_module", "load_static_library", "system", "popen", "execfile", "literal_eval"),
}
FLAGS = {("shell", True), ("allow_pickle", True)}
ALLOWED = {
    ("system/linux.py", "ctypes"): "the C library's own functions, which Python 3.11 has no names for",
    ("system/linux.py", "CDLL"): "of the process itself: no file is named",
    ("worker/runner/child.py", "import_module"): "the runner's name is in the agent's code",
}


def found_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name for alias in node.names if (name := alias.name.partition(".")[0]) in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from [name for name in [node.module.partition(".")[0]] if name in MODULES]
        elif isinstance(node, ast.Call):
            yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[str]:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    # re.compile is no evaluation.
    is_pattern = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "re"
    if called in CALLS and not is_pattern:
        yield called
    for keyword in node.keywords:
        if isinstance(keyword.value, ast.Constant) and (keyword.arg, keyword.value.value) in FLAGS:
            yield f"{keyword.arg}={keyword.value.value!s}"


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_turns_data_into_code(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    found = {(str(file.relative_to(ROOT)), what) for file in files for what in found_in(file.read_text())}
    assert {each for each in found if each not in ALLOWED} == set()


def test_every_allowed_exception_still_exists() -> None:
    for (file, what), reason in ALLOWED.items():
        assert what in set(found_in((ROOT / file).read_text())), f"{reason}: not in {file} any more"


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import numpy as np\nnp.load(file, allow_pickle=True)",
        "eval(text)",
        "builtins.exec(text)",
        "import yaml\nyaml.load(text)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "tvm.runtime.load_module(path)",
    ],
)
def test_the_check_finds_foreign_code(source: str) -> None:
    assert set(found_in(source))


def test_a_pickled_message_to_the_scheduler_is_not_read(tmp_path: Path) -> None:
    app = make_app(str(tmp_path / "broker"))
    assert app.conf.accept_content == ["json"]
    with app.connection_for_write() as connection, connection.channel() as channel:
        queue = app.amqp.queues[QUEUE].bind(channel)
        queue.declare()
        connection.Producer(channel).publish({"a": 1}, routing_key=QUEUE, serializer="pickle")
        message = queue.get(accept=app.amqp.TaskConsumer(channel).accept)
        assert message is not None
        assert message.content_type == "application/x-python-serialize"
        with pytest.raises(ContentDisallowed):
            message.decode()

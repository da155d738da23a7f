"""Run the tutorial's commands in order, with this machine as the board and a small network. Then run the
commands of all other documents on the same service."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.exit_code import ExitCode
from tests.document_commands import commands_to_run
from tests.onnx_models import transposed
from tests.processes import CHECKOUT, OWN_PROFILES, until
from tests.services import free_port
from tunefarm.cli.app import app, run
from tunefarm.client.client import Client
from tunefarm.client.values import JobRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
BLOCK = re.compile(r'^```sh title="([^"]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
# All models of the documents are one small model here, whose job gets few trials.
MODEL = re.compile(r"\b(tune|compile) \S+")
TRIALS = re.compile(r" --trials \d+")
# A worker's name in a command to it.
ORDERED = re.compile(r"\b(workers (?:drain|resume|evict)|calibrate) \S+")
# `delete` comes long after `cancel`, because a scheduler may still work on the job. The others stop the
# worker.
FIRST, LAST, STOPPED = ("cancel",), ("delete", "calibrate", "revoke", "evict"), ("restore", "migrate")


class Shell:
    """Runs blocks of the tutorial with their placeholders filled in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        http, grpc = free_port(), free_port()
        kept = {key: value for key, value in os.environ.items() if not key.startswith("TUNEFARM_")}
        self.environment = {
            **kept,
            **OWN_PROFILES,
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(CHECKOUT),
            "TUNEFARM_CONFIG": str(folder / "no config.toml"),
            "TUNEFARM_DATA": str(folder / "data"),
            "TUNEFARM_PORT": str(http),
            "TUNEFARM_GRPC_PORT": str(grpc),
            "TUNEFARM_TOKEN": "secret",
            "TUNEFARM_WORKER_CHILD_USER": "root",
        }
        self.values = {
            "HOST": "127.0.0.1",
            ":8760": f":{http}",
            ":8761": f":{grpc}",
            "--trials 300": "--trials 2",
            "mobilenet_v2 --out": "mobilenet_v2 --tiny --out",
        }
        (folder / "tunefarm").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tunefarm "$@"\n')
        (folder / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        for name in ("tunefarm", "python"):
            (folder / name).chmod(0o755)
        self._started: list[subprocess.Popen[bytes]] = []

    def filled_in(self, command: str) -> str:
        """Return a document's command with an existing model, worker and job."""
        command = ORDERED.sub(r"\1 board", MODEL.sub(r"\1 model.onnx", TRIALS.sub("", command)))
        for text, value in self.values.items():
            command = command.replace(text, value)
        return command + " --trials 2" * command.startswith("tunefarm tune ")

    def run(self, block: str) -> str:
        for text, value in self.values.items():
            block = block.replace(text, value)
        done = subprocess.run(
            ["sh", "-e", "-c", block], cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, block: str) -> None:
        """Run a block whose last command keeps running."""
        for text, value in self.values.items():
            block = block.replace(text, value)
        *first, last = block.strip().splitlines()
        with (self.folder / f"{len(self._started)}.log").open("wb") as log:
            command = ["sh", "-e", "-c", "\n".join([*first, f"exec {last}"])]
            self._started.append(
                subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
            )

    def stop(self) -> None:
        for process in reversed(self._started):
            process.terminate()
            process.wait(60)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.stop()


@pytest.mark.slow_lane(seconds=70)
def test_the_tutorial_and_every_command_of_the_documents_work(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = follow_tutorial(shell)
    fill_in(shell)
    # Starting a process takes longer than most commands.
    for name in (name for name in os.environ if name.startswith("TUNEFARM_")):
        monkeypatch.delenv(name)
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(shell.folder)
    others = dict.fromkeys(map(shell.filled_in, commands_to_run()))
    for command in map(shell.filled_in, done):
        others.pop(command, None)
    for command in sorted(others, key=turn):
        program, *words = command.split()
        if turn(command) == turn("tunefarm restore"):
            shell.stop()
        if program == "tunefarm":
            assert run(app, words) == ExitCode.OK, command
        else:
            shell.run(command)


def turn(command: str) -> int:
    """Return the order in which a command runs: greater numbers are later."""
    words = command.split()
    return next((at for at, group in ((0, FIRST), (2, LAST), (3, STOPPED)) if {*group} & {*words}), 1)


def fill_in(shell: Shell) -> None:
    """Set the values of words in capitals for this service, with a job to cancel and to delete."""
    (shell.folder / "model.onnx").write_bytes(transposed())
    (done,) = json.loads(shell.run("tunefarm jobs --json"))
    with Client(f"http://127.0.0.1:{shell.environment['TUNEFARM_PORT']}", "secret") as client:
        model = client.upload(shell.folder / "model.onnx").sha256
        other = client.submit(JobRequest(model, trials=1, target=shell.values["CLASS"]))
        workload = next(task.workload for task in client.tasks(done["id"]) if task.best_s is not None)
    (token,) = json.loads(shell.run("tunefarm token list --json"))
    shell.values |= {
        "cancel JOB": f"cancel {other.id}",
        "delete JOB": f"delete {other.id}",
        "JOB": done["id"],
        "WORKLOAD": workload,
        "revoke ID": f"revoke {token['id']}",
        "FILE": "backup.db",
        "DIR": "exported",
        "REVISION": "0017",
    }


def follow_tutorial(shell: Shell) -> list[str]:
    """Tune a model as the tutorial says; return the commands that did."""
    blocks = BLOCK.findall((CHECKOUT / "docs/tutorial.md").read_text())
    serve = next(block for title, block in blocks if title == "machine: serve")
    # The commands share the token that the machine has set.
    shell.start("\n".join(line for line in serve.splitlines() if "export" not in line))
    until(lambda: answers(shell), 120)
    token, show, tune, look = (block for title, block in blocks if title == "machine")
    made = shell.run(token)
    shell.environment["TUNEFARM_WORKER_TOKEN"] = re.findall(r"tf_[\w-]{43}", made)[0]
    (work,) = (block for title, block in blocks if title == "board")
    shell.start(work)
    until(lambda: "board" in classes(shell), 300)
    assert "board" in shell.run(show)
    shell.values["CLASS"] = classes(shell)["board"]
    shell.run(tune)
    assert (shell.folder / "mobilenet_v2-tuned" / "model.so").exists()
    (job,) = json.loads(shell.run("tunefarm jobs --json"))
    shell.values["report JOB"] = f"report {job['id']}"
    shell.run(look)
    assert list(shell.folder.glob("*.html"))
    return "".join((token, show, tune, look)).splitlines()


def answers(shell: Shell) -> bool:
    command = ["sh", "-c", "tunefarm workers --json"]
    return subprocess.run(command, env=shell.environment, capture_output=True).returncode == 0


def classes(shell: Shell) -> dict[str, str]:
    """Return the device classes of the workers that have one."""
    workers = json.loads(shell.run("tunefarm workers --json"))
    return {one["id"]: one["device_class"] for one in workers if one["device_class"]}

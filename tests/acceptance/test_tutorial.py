"""The tutorial's commands, one after the other, with this machine as the board and a small network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import CHECKOUT, OWN_PROFILES, until
from tests.services import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BLOCK = re.compile(r'^```sh title="([^"]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)


class Shell:
    """Runs blocks of the tutorial with what they leave open filled in."""

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
            "8761": str(grpc),
            "--trials 300": "--trials 2",
            "mobilenet_v2 --out": "mobilenet_v2 --tiny --out",
        }
        (folder / "tunefarm").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tunefarm "$@"\n')
        (folder / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        for name in ("tunefarm", "python"):
            (folder / name).chmod(0o755)
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, block: str) -> str:
        for text, value in self.values.items():
            block = block.replace(text, value)
        done = subprocess.run(
            ["sh", "-e", "-c", block], cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, block: str) -> None:
        """Run a block whose last command goes on."""
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


def test_the_tutorial_leads_to_a_tuned_model(shell: Shell) -> None:
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


def answers(shell: Shell) -> bool:
    command = ["sh", "-c", "tunefarm workers --json"]
    return subprocess.run(command, env=shell.environment, capture_output=True).returncode == 0


def classes(shell: Shell) -> dict[str, str]:
    """Return the device classes of the workers that have one."""
    workers = json.loads(shell.run("tunefarm workers --json"))
    return {one["id"]: one["device_class"] for one in workers if one["device_class"]}

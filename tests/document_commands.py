"""The commands in the documents, and how each is checked. Commands outside PARSED are also run, in
tests/acceptance/test_tutorial.py."""

from __future__ import annotations

import re
import shlex
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic_settings import BaseSettings
from ruamel.yaml import YAML
from starlette.routing import Match
from typer.main import get_command

from benchmarks.__main__ import COMMANDS as BENCHMARKS
from records.storage.database import Database
from scheduler.main import scheduler
from scheduler.settings import SchedulerSettings
from server.app import create_app
from server.context import ServerContext
from server.main import server
from server.settings import ServerSettings
from tunefarm.cli.app import app
from tunefarm.settings import CommandSettings
from worker.main import worker
from worker.settings import WorkerSettings

ROOT = Path(__file__).parents[1]


DOCUMENTS = sorted(
    {
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/devices").glob("*.md"),
    }
)


# Each process parses the arguments that `tunefarm` passes to it.
PROCESSES: dict[str, Callable[..., object]] = {"server": server, "scheduler": scheduler, "worker": worker}


SETTINGS: Sequence[type[BaseSettings]] = (CommandSettings, ServerSettings, SchedulerSettings, WorkerSettings)


# Commands of other programs, which can't be checked here, and why.
EXCEPTED = {
    "sudo apt install python3-venv curl": "what /install needs; tests/acceptance/test_install.py",
    "sudo apt install python3.11-venv curl": "the same on a Jetson",
    "tunefarm --install-completion": "changes the files of whoever runs it as soon as it is parsed",
    "less tunefarm-install": "shows a file",
    "sudo nvpmodel -q": "NVIDIA's, on a Jetson alone",
    "sudo jetson_clocks": "NVIDIA's, on a Jetson alone",
    "kubectl create namespace tunefarm": "needs a cluster; tests/unit/deploy/test_kubernetes.py has the name",
    "ssh board /opt/tunefarm/bin/python run_artifact.py mobilenet_v2-tuned": "`make demo` runs it",
    "scp -r mobilenet_v2-tuned examples/run_artifact.py board:": "needs a board",
    "cmake -S resnet18-bundle -B resnet18-bundle/build": "tests/integration/runtime/test_bundle.py",
    "cmake --build resnet18-bundle/build": "the same",
    "resnet18-bundle/build/main resnet18-bundle": "the same",
}


# Beginnings of commands that are only parsed, and why. tests/acceptance/test_tutorial.py runs the rest.
PARSED = {
    ".ci/run": "continuous integration itself",
    "make": "continuous integration runs these targets",
    "pip": "tests/acceptance/test_install.py and test_images.py install for minutes",
    "sudo": "changes the machine, as root; tests/acceptance/test_install.py has a root of its own",
    "less": "shows a file",
    "export": "a setting of the commands that come after it",
    "journalctl": "needs systemd",
    "/opt/tunefarm": "needs an installed board; tests/acceptance/test_install.py has one",
    "scp": "needs a board",
    "ssh": "needs a board",
    "sh deploy/make-env.sh": "of the composition",
    "docker": "needs Docker; tests/acceptance/test_composition.py does the same without",
    "kubectl": "needs a cluster; tests/unit/deploy/test_kubernetes.py validates the manifests",
    "helm": "the same",
    "tar": "needs a model with weights in other files; tests/integration/compiler/test_formats.py has one",
    "python -m": "benchmarks, fuzzing, pictures and goldens measure for minutes or write into the checkout",
    "tunefarm --install-completion": "changes the files of whoever runs it",
    "tunefarm up": "goes on; the tutorial's runs while all others are run",
    "tunefarm server": "goes on; tests/acceptance/test_secured.py",
    "tunefarm worker ": "goes on; the tutorial's runs, others in test_builders.py and test_features.py",
    "tunefarm mcp": "speaks a protocol; tests/integration/server/test_mcp.py",
    "tunefarm jobs --live": "needs a terminal; tests/unit/tunefarm/test_cli.py",
    "tunefarm top": "needs a terminal; tests/integration/server/test_top.py",
    "tunefarm workers --live": "needs a terminal; tests/unit/tunefarm/test_cli.py",
    "tunefarm workers update": "for a worker of another version; tests/integration/server/test_install.py",
    "tunefarm workers reserve": "needs tokens; tests/integration/server/test_reservations.py",
    "TUNEFARM_CA=": "needs TLS; tests/acceptance/test_secured.py",
    "tunefarm bench": "tests/integration/runtime/test_comparison.py",
    "tunefarm bundle": "the same",
    "tunefarm release": "tests/integration/server/test_releases.py",
    "tunefarm diff": "tests/integration/server/test_differences.py",
    "tunefarm check": "the same",
    "tunefarm webhook": "tests/integration/server/test_webhooks.py",
    "tunefarm verify": "tests/integration/tunefarm/test_verify.py",
    "tunefarm infer": "tests/acceptance/test_tune.py",
    "cmake": "tests/integration/runtime/test_bundle.py",
    "resnet18-bundle": "the same",
    "tunefarm tune a.onnx b.onnx": "tests/acceptance/test_tune.py",
    "tunefarm tune bert.onnx": "tests/acceptance/test_sizes.py",
    "tunefarm tune prefill.pt2": "tests/integration/runtime/test_decoders.py",
    "tunefarm tune llama.onnx": "the same",
}


# Modules without argparse: the test only checks that they exist.
WITHOUT_PARSER = {"benchmarks", "examples.run_artifact", "tests.unit.search.test_goldens"}


BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


INLINE = re.compile(r"`([^`\n]+)`")


# Words that begin a command if another word follows. `tunefarm.tune` is not a command.
PROGRAMS = (
    "tunefarm",
    "python",
    "pip",
    "curl",
    "make",
    "docker",
    "helm",
    "kubectl",
    "sudo",
    "sh",
    "journalctl",
    "tar",
)


NAMED = re.compile(r"tunefarm( [a-z][a-z-]*)+")


CHECKED: dict[str, Callable[[list[str]], object]] = {}


@dataclass(frozen=True)
class Command:
    """A command with its words, and the text that it was read from."""

    text: str
    words: tuple[str, ...]


def commands(document: Path) -> Iterator[Command]:
    """Yield the commands in shell blocks and in inline code."""
    text = document.read_text()
    for language, block in BLOCK.findall(text):
        if language.partition(" ")[0] in ("", "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                yield from _of_line(line)
    for quoted in INLINE.findall(BLOCK.sub("", text)):
        if quoted.partition(" ")[0] in PROGRAMS and " " in quoted:
            # A bare command in a sentence is only a name.
            yield from _of_line(quoted + " --help" * bool(NAMED.fullmatch(quoted)))


def _of_line(line: str) -> Iterator[Command]:
    words: list[str] = []
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&<>;")
    lexer.whitespace_split, lexer.commenters = True, "#"
    for word in [*lexer, "&&"]:
        if word not in ("|", "&&", ";"):
            words.append(word)
            continue
        if words:
            yield Command(" ".join(words), tuple(word for word in words if word != "..."))
        words = []


def commands_to_run() -> list[str]:
    """Return the distinct commands of all documents that are neither PARSED nor names in a sentence."""
    texts = {command.text: None for document in DOCUMENTS for command in commands(document)}
    return [text for text in texts if not text.startswith(tuple(PARSED)) and not text.endswith(" --help")]


def checks(*programs: str) -> Callable[[Callable[[list[str]], object]], Callable[[list[str]], object]]:
    def named(check: Callable[[list[str]], object]) -> Callable[[list[str]], object]:
        CHECKED.update(dict.fromkeys(programs, check))
        return check

    return named


@checks("tunefarm", "/opt/tunefarm/bin/tunefarm")
def check_tunefarm(words: list[str]) -> None:
    command: Any = get_command(app)
    path = ["tunefarm"]
    while words and words[0] in getattr(command, "commands", {}):
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    if words and not words[0].startswith("-"):
        assert not hasattr(command, "commands"), f"{path} has no {words[0]}"
    if path[1:] and path[1] in PROCESSES:
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command()(PROCESSES[path[1]])
        command = get_command(alone)
    try:
        command.make_context(" ".join(path), words)
    except typer.Exit:  # after --help
        pass
    except typer.TyperException as error:
        pytest.fail(error.format_message())


@checks("python", "python3")
def check_python(words: list[str]) -> None:
    if words[0] == "-c":
        compile(words[1], "-c", "exec")
        return
    assert words[0] == "-m"
    assert find_spec(words[1].rstrip(".")) is not None


@checks("pip")
def check_pip(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert words[0] == "install"
    for word in words[1:]:
        extras = re.fullmatch(r"(?:\.|tunefarm)\[([\w,]+)\]", word)
        if extras is not None:
            assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
        else:
            assert word in ("-c", "--no-deps") or (ROOT / word).exists(), word


@checks("curl")
def check_curl(words: list[str]) -> None:
    method = words[words.index("-X") + 1] if "-X" in words else "GET"
    urls = [word for word in words if word.startswith("http")]
    assert urls
    for url in urls:
        assert is_routed(method, re.sub(r"^https?://[\w.:]+", "", url)), url


@checks("make")
def check_make(words: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(words) <= set(targets)


@checks("docker")
def check_docker(words: list[str]) -> None:
    composed = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]
    assert words[0] == "compose"
    if words[1] == "--profile":
        assert any(words[2] in service.get("profiles", ()) for service in composed.values())
        words = [words[0], *words[3:]]
    named = [word for word in words[2:] if not word.startswith("-")]
    if words[1] in ("up", "build"):
        assert not named
    elif words[1] == "stop":
        assert composed.keys() >= {*named}
    elif words[1] == "run":
        assert named[:2] == ["tunefarm", "server"], "the entry point and the service"
        check_tunefarm(words[words.index("server") + 1 :])
    else:
        assert words[1] in ("exec", "logs")
        assert named[0] in composed


@checks("kubectl")
def check_kubectl(words: list[str]) -> None:
    text = " ".join(words)
    if "label" in words:
        assert words[-1].startswith("pod-security.kubernetes.io/enforce=")
    else:
        assert "create secret generic tunefarm" in text, "it is the one that the manifests name"
        for name in re.findall(r"--from-literal=(\w+)", text):
            assert is_setting(name)


@checks("helm")
def check_helm(words: list[str]) -> None:
    assert words[:2] == ["upgrade", "--install"]
    assert (ROOT / words[3] / "Chart.yaml").exists()


@checks("export")
def check_export(words: list[str]) -> None:
    assert is_setting(words[0].partition("=")[0])


@checks("sh")
def check_sh(words: list[str]) -> None:
    if words[0].startswith("deploy/"):
        assert (ROOT / words[0]).exists()
        return
    script = (ROOT / "server/install/install.sh").read_text()
    assert Path(words[0]).name in ("install", "tunefarm-install")
    for flag in (word for word in words if word.startswith("--")):
        assert re.search(rf"^ +(?:[\w| -]+ )?{flag}(?:\)| \|)", script, re.MULTILINE), flag


@checks("journalctl", "systemctl")
def check_systemd(words: list[str]) -> None:
    (unit,) = (word for word in words if word.startswith("tunefarm"))
    assert (ROOT / "deploy/systemd" / f"{unit}.service").exists()


@checks("cp", "scp")
def check_copied(words: list[str]) -> None:
    ours = [word for word in words[:-1] if not word.startswith("-") and not word.endswith("-tuned")]
    assert all((ROOT / word).exists() for word in ours)


@checks(".ci/run")
def check_ci(words: list[str]) -> None:
    assert (ROOT / ".ci/run").stat().st_mode & 0o100
    assert not words


@checks("tar")
def check_tar(words: list[str]) -> None:
    assert words[:2] == ["-cf", "model.tar"]


@cache
def application() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/tunefarm.db"
        database = Database(url)
        settings = ServerSettings(database_url=url, broker=folder)
        context = ServerContext(settings, database, lambda step, job: None, lambda: 0.0, lambda: "")
        made = create_app(context)
        database.close()
        return made


def is_routed(method: str, target: str) -> bool:
    scope = {
        "type": "http",
        "method": method,
        "path": target.partition("?")[0],
        "headers": [],
        "root_path": "",
    }
    return any(route.matches(scope)[0] is Match.FULL for route in application().routes)


def is_setting(name: str) -> bool:
    if name.startswith("OTEL_"):
        return f"`{name}`" in (ROOT / "docs/tracing.md").read_text()
    prefixed = {
        f"{kind.model_config.get('env_prefix', '')}{field}".upper()
        for kind in SETTINGS
        for field in kind.model_fields
    }
    return name in prefixed


def check(command: Command) -> None:
    words = list(command.words)
    if command.text in EXCEPTED:
        return
    while "=" in words[0]:  # a setting of the command alone
        assert is_setting(words.pop(0).partition("=")[0]), command.text
    if words[0] == "sudo":
        words.pop(0)
    if words[:2] == ["taskset", "--cpu-list"]:
        words = words[3:]
    words = words[: next((at for at, word in enumerate(words) if word in ("<", ">")), len(words))]
    assert words[0] in CHECKED, f"nothing checks {command.text}: add a check, or an exception with its reason"
    CHECKED[words[0]](words[1:])


def with_arguments() -> Mapping[str, None]:
    """The modules with their arguments that the documents and the list of benchmarks name."""
    found = dict.fromkeys(BENCHMARKS)
    for document in DOCUMENTS:
        for command in commands(document):
            words = command.words
            if words[:2] == ("python", "-m") and len(words) > 3 and words[2] not in WITHOUT_PARSER:
                found[" ".join(words[2:])] = None
    return found

"""Build images without Docker: each stage of a Dockerfile is a Debian root, in which chroot runs the steps.
Needs root. Supports only the instructions of deploy/Dockerfile.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import string
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from dockerfile_parse import DockerfileParser
from pathspec import PathSpec

from tests import debian

# Of python:3.11-slim-bookworm.
_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
_BASE = f"python:{debian.PYTHON}-slim-{debian.SUITE}"
_WITHOUT_EFFECT = ("COMMENT", "EXPOSE")


def obstacle() -> str | None:
    """Return why no image can be built here; None if it can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in ("debootstrap", "unshare", "nsenter") if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)} (packages debootstrap, util-linux)" if missing else None


@dataclass
class Image:
    """A root, and how to start a container from it."""

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": _PATH})
    folder: PurePosixPath = field(default_factory=lambda: PurePosixPath("/"))
    user: str = "0"
    entrypoint: tuple[str, ...] = ()

    def derived(self, root: Path) -> Image:
        """Return a copy of this image in a new root."""
        debian.run(["cp", "--archive", "--reflink=auto", str(self.root), str(root)])
        return Image(root, dict(self.environment), self.folder, self.user, self.entrypoint)

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], volumes: Mapping[str, Path]
    ) -> Container:
        """Run the entry point as a composition does: unprivileged, on a read-only root, in this machine's
        network."""
        of_container = {**self.environment, **environment}
        command = [*self._as_user(), *self.entrypoint, *arguments]
        process = debian.start(
            self.root, self._in_folder(command), of_container, bound=volumes, read_only=True
        )
        return Container(process, of_container, self._as_user())

    def run(self, command: str, environment: Mapping[str, str], bound: Mapping[str, Path]) -> None:
        """Run a shell command, which may change the root."""
        words = [*self._as_user(), "/bin/sh", "-c", command]
        step = debian.start(
            self.root, self._in_folder(words), {**self.environment, **environment}, bound=bound
        )
        output, _ = step.communicate()
        assert step.returncode == 0, f"RUN {command}: {output[-3000:]}"

    def path(self, named: str) -> Path:
        """Return the path on this machine of a path in the image."""
        return self.root / str(self.folder / named).lstrip("/")

    def _as_user(self) -> list[str]:
        if self.user == "0":
            return []
        return ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups", "--no-new-privs"]

    def _in_folder(self, command: Sequence[str]) -> list[str]:
        return ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(self.folder), *command]


@dataclass(frozen=True)
class Container:
    """A running entry point. `process` is the container's own process."""

    process: subprocess.Popen[str]
    environment: Mapping[str, str]
    as_user: Sequence[str]

    def succeeds(self, check: Sequence[str]) -> bool:
        """Run a composition's health check beside the entry point."""
        how, *words = check
        command = words if how == "CMD" else ["/bin/sh", "-c", *words]
        enter = ["nsenter", "--target", str(self.process.pid), "--mount", "--root", "--wd"]
        done = subprocess.run(
            [*enter, *self.as_user, *command], env=dict(self.environment), capture_output=True
        )
        return done.returncode == 0

    def stop(self) -> tuple[int, str]:
        """Stop it as a composition does; return the exit code and the output."""
        self.process.terminate()
        output, _ = self.process.communicate(timeout=120)
        return self.process.returncode, output


def build(dockerfile: Path, context: Path, targets: Sequence[str], folder: Path) -> dict[str, Image]:
    """Build and return the images of some stages, by name. pip installs from a folder that this machine's pip
    filled; no image keeps the folder. Raises Unavailable.
    """
    with dockerfile.open("rb") as file:
        steps = DockerfileParser(fileobj=file).structure
    ignored = PathSpec.from_lines("gitignore", (context / ".dockerignore").read_text().splitlines())
    text = dockerfile.read_text()
    extras = {extra for listed in re.findall(r"'\.\[([\w,]+)\]'", text) for extra in listed.split(",")}
    # Debian's Python is 3.11.2, for which redis wants async-timeout; the image's own is newer, as ours.
    wheels = debian.wheels(os.uname().machine, ",".join(sorted(extras)), "setuptools", "async-timeout")
    # The server's bundles also have libraries for other architectures.
    others = debian.wheels("aarch64", "worker,verify")
    outside = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/mnt /srv", "PIP_NO_COMPILE": "1"}
    outside |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    needed = _needed(steps, targets)
    images: dict[str, Image] = {}
    is_needed, image = False, Image(folder)
    for step in steps:
        instruction, value = step["instruction"], step["value"]
        if instruction == "FROM":
            base, _, stage = value.partition(" AS ")
            is_needed = stage in needed
            if is_needed:
                image = (images.get(base) or _of_registry(base)).derived(folder / stage)
                images[stage] = image
        elif not is_needed or instruction in _WITHOUT_EFFECT:
            continue
        elif instruction == "RUN":
            image.run(value, outside, {"/mnt": wheels, "/srv": others})
        elif instruction == "COPY":
            _copy(image, shlex.split(value), images, context, ignored)
        elif instruction == "ENV":
            known = dict(image.environment)
            for setting in shlex.split(value):
                name, _, given = setting.partition("=")
                image.environment[name] = string.Template(given).substitute(known)
        elif instruction == "WORKDIR":
            image.folder /= value
            image.path(".").mkdir(parents=True, exist_ok=True)
        elif instruction == "USER":
            image.user = value
        elif instruction == "ENTRYPOINT":
            image.entrypoint = tuple(json.loads(value))
        else:
            raise AssertionError(f"{instruction} isn't understood here")
    return {name: images[name] for name in targets}


def _needed(steps: Sequence[Mapping[str, str]], targets: Sequence[str]) -> set[str]:
    """Return the names of the stages that the targets depend on."""
    sources: dict[str, set[str]] = {}
    for step in steps:
        if step["instruction"] == "FROM":
            base, _, name = step["value"].partition(" AS ")
            sources[name] = {base}
        elif step["instruction"] == "COPY":
            sources[name] |= set(re.findall(r"--from=(\S+)", step["value"]))
    found, waiting = set(), list(targets)
    while waiting:
        name = waiting.pop()
        if name in sources and name not in found:
            found.add(name)
            waiting += sources[name]
    return found


def _of_registry(name: str) -> Image:
    assert name == _BASE, f"there is {_BASE} alone, and no {name}"
    machine = os.uname().machine
    root = debian.make({"x86_64": "amd64", "aarch64": "arm64"}[machine], configured=True)
    for program in ("python", "python3"):
        link = root / "usr/local/bin" / program
        if not link.is_symlink():
            link.symlink_to("/usr/bin/python3")
    return Image(root)


def _copy(
    image: Image, words: Sequence[str], images: Mapping[str, Image], context: Path, ignored: PathSpec[Any]
) -> None:
    flags = [word for word in words if word.startswith("--")]
    *sources, target = words[len(flags) :]
    into = image.path(target)
    if flags:
        (stage,) = (flag.removeprefix("--from=") for flag in flags)
        (source,) = sources
        debian.run(["cp", "--archive", "--no-target-directory", str(images[stage].path(source)), str(into)])
        return
    for source in sources:
        found = context / source
        assert found.exists(), f"there is no {source} to copy"
        is_folder = found.is_dir()
        files = found.rglob("*") if is_folder else iter([found])
        copied = 0
        for file in _let_in(files, context, ignored):
            to = into / file.relative_to(found) if is_folder else into / file.name
            if not is_folder and not target.endswith("/"):
                to = into
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, to, follow_symlinks=False)
            copied += 1
        assert copied, f".dockerignore keeps all of {source} away"


def _let_in(files: Iterator[Path], context: Path, ignored: PathSpec[Any]) -> Iterator[Path]:
    for file in files:
        if (file.is_symlink() or file.is_file()) and not ignored.match_file(file.relative_to(context)):
            yield file

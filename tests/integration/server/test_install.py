"""The files that the service serves to install a worker."""

from __future__ import annotations

import io
import os
import pty
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from core.worker import DesiredState, Vitals, WorkerState
from tests.services import free_port

from .conftest import Service, Start, Worker
from .test_workers import act, shown


@pytest.fixture
def guarded(start: Start) -> Service:
    return start(token="secret")


def script_of(service: Service, folder: Path) -> Path:
    path = folder / "install.sh"
    path.write_text(service.http.get("/install").text)
    return path


def test_the_install_script_names_its_service(guarded: Service, tmp_path: Path) -> None:
    script = script_of(guarded, tmp_path)
    subprocess.run(["sh", "-n", str(script)], check=True)
    text = script.read_text()
    assert f"service={guarded.url} " in text
    assert f"workers=127.0.0.1:{guarded.context.settings.grpc_port} " in text
    assert "@" not in "".join(line for line in text.splitlines() if line.startswith("service="))


@pytest.mark.parametrize("host", ["a b", "$(reboot)", "a;b", "`id`", "a'b"])
def test_an_invalid_host_does_not_get_into_the_script(guarded: Service, host: str) -> None:
    answer = guarded.http.get("/install", headers={"Host": host})
    assert answer.status_code == 400 or f"service={guarded.url} " in answer.text


def test_the_archive_installs_the_tunefarm_that_serves(guarded: Service, tmp_path: Path) -> None:
    answer = guarded.http.get("/install/worker.tar")
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        archive.extractall(tmp_path, filter="data")
    assert (tmp_path / "constraints.txt").read_text().count("apache-tvm==") == 1
    assert "ExecStart=/opt/tunefarm/bin/tunefarm worker" in (tmp_path / "tunefarm-worker.service").read_text()
    (wheel,) = tmp_path.glob("tunefarm-*-py3-none-any.whl")
    (runtime,) = tmp_path.glob("tunefarm_runtime-*-py3-none-any.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(tmp_path / "there"), str(wheel), str(runtime)], check=True)
    assert (tmp_path / "there/tunefarm_runtime/c/tunefarm.c").exists()
    assert not (tmp_path / "there/tunefarm_runtime/lib").exists(), "a worker has TVM's libraries"
    own = Path(__file__).parents[3]
    for file in ("worker/main.py", "server/dashboard/static/app.js", "server/install/install.sh"):
        assert (tmp_path / "there" / file).read_bytes() == (own / file).read_bytes()


def installing(script: Path, folder: Path, **options: object) -> subprocess.Popen[str]:
    """Run the script with an empty package index."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PIP_NO_INDEX": "1"}
    command = ["sh", str(script), "--prefix", str(folder / "there"), "--no-unit"]
    return subprocess.Popen(command, env=environment, text=True, start_new_session=True, **options)  # type: ignore[call-overload]


def test_without_a_terminal_the_script_names_the_token_variable(guarded: Service, tmp_path: Path) -> None:
    process = installing(script_of(guarded, tmp_path), tmp_path, stderr=subprocess.PIPE)
    assert "set TUNEFARM_WORKER_TOKEN" in process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert not list((tmp_path / "there").iterdir()), "nothing was installed"


@pytest.mark.slow_lane(seconds=5)
def test_on_a_terminal_the_script_asks_for_the_token(guarded: Service, tmp_path: Path) -> None:
    script = script_of(guarded, tmp_path)
    child, terminal = pty.fork()
    if child == 0:
        os.environ["PIP_NO_INDEX"] = "1"
        os.execvp("sh", ["sh", str(script), "--prefix", str(tmp_path / "there"), "--no-unit", "--name", "x"])
    said = ""
    while "Token with the scope worker" not in said:
        said += os.read(terminal, 1024).decode()
    os.write(terminal, b"tf_secret\n")
    try:
        while more := os.read(terminal, 1024):
            said += more.decode()
    except OSError:  # how Linux says that the other side has closed
        pass
    os.waitpid(child, 0)
    os.close(terminal)
    assert "tf_secret" not in said
    assert "pip could not install the packages" in said, "it went on with the token"


def test_a_service_that_is_away_is_named(guarded: Service, tmp_path: Path) -> None:
    script = script_of(guarded, tmp_path)
    script.write_text(script.read_text().replace(guarded.url, f"http://127.0.0.1:{free_port()}"))
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TUNEFARM_WORKER_TOKEN": "x"}
    command = ["sh", str(script), "--prefix", str(tmp_path / "there"), "--no-unit"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "worker.tar can't be fetched" in done.stderr
    assert done.returncode != 0


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv(1)")
@pytest.mark.parametrize(
    ("variables", "prefix", "file"),
    [
        ({}, None, ".config/tunefarm/worker.env"),
        ({"XDG_CONFIG_HOME": "relative"}, None, ".config/tunefarm/worker.env"),
        ({"XDG_CONFIG_HOME": "{home}/settings"}, None, "settings/tunefarm/worker.env"),
        ({}, "second", ".config/tunefarm/worker{prefix}.env"),
    ],
)
def test_the_token_is_kept_where_measured_code_does_not_look(
    guarded: Service, variables: dict[str, str], prefix: str | None, file: str
) -> None:
    """A user without root installs with nothing left for pip. The prefix holds an older token."""
    home = Path(tempfile.mkdtemp(dir="/var/tmp"))
    there = home / (prefix or ".local/share/tunefarm")
    for name, text in (
        ("bin/python", "#!/bin/sh\n"),
        ("bin/tunefarm", "#!/bin/sh\nenv\n"),
        ("worker.env", "tf"),
    ):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text(text)
        (there / name).chmod(0o755)
    expected = home / file.format(prefix=str(there).replace("/", "-"))
    expected.parent.mkdir(parents=True)
    expected.write_text("old")
    expected.chmod(0o644)
    try:
        subprocess.run(["chown", "-R", "nobody", str(home)], check=True)
        script = script_of(guarded, home)
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TUNEFARM_WORKER_TOKEN": "tf_secret"}
        environment |= {name: value.format(home=home) for name, value in variables.items()}
        as_nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        command = [*as_nobody, "sh", str(script), *([] if prefix is None else ["--prefix", str(there)])]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        assert "tf_secret" in expected.read_text()
        assert expected.stat().st_mode & 0o777 == 0o600
        holders = [one for one in home.rglob("*") if one.is_file() and "tf_secret" in one.read_text()]
        assert holders == [expected]
        assert not (there / "worker.env").exists()
        started = subprocess.run(
            [*as_nobody, str(there / "start")], env={"HOME": str(home)}, capture_output=True
        )
        assert b"TUNEFARM_WORKER_TOKEN=tf_secret" in started.stdout
    finally:
        shutil.rmtree(home)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="there is no shellcheck here")
def test_the_script_is_tidy(guarded: Service, tmp_path: Path) -> None:
    subprocess.run(["shellcheck", str(script_of(guarded, tmp_path))], check=True)


OLD = Vitals("0.0.9")


def test_a_worker_of_another_version_is_shown_and_updated_when_told(service: Service, worker: Worker) -> None:
    own = Vitals(service.context.version)
    assert worker.call(vitals=OLD).service_version == service.context.version
    assert shown(service)["other_version"]
    assert act(service, "update")["desired_state"] == "update"
    assert worker.call(vitals=OLD).desired_state is DesiredState.UPDATE
    assert worker.call(WorkerState.DRAINING, vitals=OLD).desired_state is DesiredState.UPDATE
    updated = Worker(service.fleet)
    assert updated.call(WorkerState.PROBING, vitals=own).desired_state is DesiredState.WORK
    assert not shown(service)["other_version"]
    assert shown(service)["desired_state"] == "work"


def test_a_worker_of_this_version_needs_no_update(service: Service, worker: Worker) -> None:
    worker.call(vitals=Vitals(service.context.version))
    answer = service.http.post("/v1/workers/board:update")
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (409, "worker-up-to-date"), (
        answer.text
    )

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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import trustme

from core.worker import DesiredState, Vitals, WorkerState
from tests.services import free_port

from .conftest import Service, Start, Worker, bearer
from .test_workers import act, shown

TOKEN = "tf_secret"


@pytest.fixture
def guarded(start: Start) -> Service:
    return start(token=TOKEN)


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
    assert not (tmp_path / "there").exists(), "nothing was installed"


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
    done = finished(script, tmp_path, token="x")
    assert "/v1/session can't be fetched: check the address and the network ([Errno 111]" in done.stderr
    assert done.returncode == 4
    assert not (tmp_path / "there").exists()


def finished(
    script: Path, folder: Path, *flags: str, token: str = TOKEN, wrapper: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the script to its end, with a package index that is empty."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PIP_NO_INDEX": "1"}
    environment |= {"TUNEFARM_WORKER_TOKEN": token} if token else {}
    command = ["sh", str(script), "--prefix", str(folder / "there"), "--no-unit", *flags]
    if script.parent.name == "there":  # the copy knows its prefix
        command = ["sh", str(script), *flags]
    return subprocess.run(
        [*wrapper, *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("tf_wrong", "refused {url}/v1/session: This service doesn't know the token: check it"),
        ("\N{DASH SYMBOL}", "doesn't know the token"),
        ("read", "refused {url}/v1/session: the token lacks the scope worker"),
    ],
)
def test_a_wrong_token_is_refused_before_the_installation(
    guarded: Service, tmp_path: Path, token: str, said: str
) -> None:
    if token == "read":
        made = {"name": "reader", "scopes": ["read"]}
        token = guarded.http.post("/v1/tokens", json=made, headers=bearer(TOKEN)).json()["token"]
    done = finished(script_of(guarded, tmp_path), tmp_path, token=token)
    assert said.format(url=guarded.url) in done.stderr
    assert done.returncode == 5
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    ("flags", "said", "code"),
    [
        (("--name", "my board"), "a worker's name has no spaces, quotes or backslashes: my board", 2),
        (("--name", "o'brien"), "a worker's name has no spaces", 2),
        (("--server", "farm"), "--server is HOST:PORT, such as farm:8761, not farm", 2),
        (("--update",), "only the copy in an installation updates and uninstalls it: sudo sh ", 2),
        (("--uninstall",), "only the copy in an installation", 2),
        (("--ca", "no.pem"), "the files of --ca, --cert and --key can't be used: [Errno 2]", 3),
    ],
)
def test_a_wrong_flag_is_named_before_the_installation(
    guarded: Service, tmp_path: Path, flags: tuple[str, ...], said: str, code: int
) -> None:
    done = finished(script_of(guarded, tmp_path), tmp_path, *flags)
    assert said in done.stderr
    assert (done.returncode, (tmp_path / "there").exists()) == (code, False)


def test_a_folder_with_other_files_is_left_alone(guarded: Service, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/thesis.tex").touch()
    done = finished(script_of(guarded, tmp_path), tmp_path)
    assert "there has other files: choose another --prefix" in done.stderr
    assert [one.name for one in (tmp_path / "there").iterdir()] == ["thesis.tex"]


def test_an_incomplete_download_runs_nothing(guarded: Service, tmp_path: Path) -> None:
    script = script_of(guarded, tmp_path)
    text = script.read_text()
    script.write_text(text[: text.index("# Packages")] + "echo it ran\n")
    done = finished(script, tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""


AS_NOBODY = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
needs_another_user = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv(1)"
)


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder for the user nobody."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


def fake_environment(there: Path) -> None:
    """Make an installed environment in which pip has nothing to do, and the worker shows its settings."""
    for name, text in (("bin/python", ""), ("bin/tunefarm", "env"), ("installed", "")):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text(f"#!/bin/sh\n{text}\n" if text or "/" in name else "")
        (there / name).chmod(0o755)


def started(there: Path) -> dict[str, str]:
    """Return the settings that a started worker has."""
    done = subprocess.run([there / "start"], env={}, capture_output=True, text=True, check=True)
    pairs = (line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    return {name.removeprefix("TUNEFARM_WORKER_"): value for name, value in pairs}


@needs_another_user
def test_the_copy_changes_an_installation_and_deletes_it(guarded: Service, home: Path) -> None:
    there, authority = home / "there", home / "ca.pem"
    fake_environment(there)
    trustme.CA().cert_pem.write_to_path(str(authority))
    script = script_of(guarded, home)
    subprocess.run(["chown", "-R", "nobody", str(home)], check=True)
    flags = ("--name", "board", "--build", "--server", "farm:1", "--ca", str(authority))
    done = finished(script, home, *flags, wrapper=AS_NOBODY)
    assert done.returncode == 0, done.stderr
    (settings,) = (home / ".config/tunefarm").iterdir()
    with settings.open("a") as file:
        file.write("# by hand\nTUNEFARM_WORKER_FEATURES=-avx512f\nZIG_GLOBAL_CACHE_DIR=/var/zig\n")
    first = started(there)
    expected = {"NAME": "board", "BUILD": "1", "SERVER": "farm:1", "TOKEN": TOKEN, "CA": str(authority)}
    expected |= {"FEATURES": "-avx512f", "ZIG_GLOBAL_CACHE_DIR": "/var/zig"}
    assert first.items() >= expected.items()

    again = finished(there / "install", home, "--name", "desk", token="", wrapper=AS_NOBODY)
    assert again.returncode == 0, again.stderr
    assert started(there) == first | {"NAME": "desk"}

    removed = finished(there / "install", home, "--uninstall", token="", wrapper=AS_NOBODY)
    assert "was deleted with its settings; the token is valid until it is revoked" in removed.stdout
    assert (there.exists(), settings.exists()) == (False, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_systemd_runs_one_installation_with_its_certificates(guarded: Service, tmp_path: Path) -> None:
    units, calls = tmp_path / "units", tmp_path / "calls"
    authority, there = tmp_path / "ca.pem", tmp_path / "there"
    trustme.CA().cert_pem.write_to_path(str(authority))
    units.mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/systemctl").write_text(f'#!/bin/sh\necho "$@" >>{calls}\n')
    (tmp_path / "bin/systemctl").chmod(0o755)
    replaced = {"/etc/systemd/system": units, "=/etc/tunefarm": f"={tmp_path}/etc", "/run/systemd": "/no"}
    script = with_replaced(script_of(guarded, tmp_path), replaced)
    fake_environment(there)

    def install(*flags: str, script: Path = script) -> subprocess.CompletedProcess[str]:
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", str(script), *flags],
            env={"PATH": path, "HOME": "/root", "TUNEFARM_WORKER_TOKEN": TOKEN},
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )

    done = install("--prefix", str(there), "--name", "board", "--gpu", "0", "--unit", "--ca", str(authority))
    assert "the worker board starts with this machine: systemd doesn't run now" in done.stdout, done.stderr
    unit = (units / "tunefarm-worker.service").read_text()
    assert f"\nExecStart={there}/bin/tunefarm worker\n" in unit
    passed_on = "/run/credentials/tunefarm-worker.service/CA"
    assert f"\nLoadCredential=CA:{authority}\nEnvironment=TUNEFARM_WORKER_CA={passed_on}\n" in unit
    assert "\nDynamicUser=yes\n" in unit
    assert "\nSupplementaryGroups=video\n" in unit, "which every Debian has"
    assert "_CA" not in (tmp_path / "etc/worker.env").read_text()
    assert calls.read_text() == "enable --quiet tunefarm-worker\n"

    second = install("--prefix", str(tmp_path / "second"), "--unit")
    assert "systemd runs another worker of this machine" in second.stderr
    assert install("--uninstall", script=with_replaced(there / "install", replaced)).returncode == 0
    assert (list(units.iterdir()), there.exists(), (tmp_path / "etc/worker.env").exists()) == (
        [],
        False,
        False,
    )


def with_replaced(script: Path, values: Mapping[str, object]) -> Path:
    text = script.read_text()
    for old, new in values.items():
        text = text.replace(old, str(new))
    script.write_text(text)
    return script


@needs_another_user
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
    guarded: Service, home: Path, variables: dict[str, str], prefix: str | None, file: str
) -> None:
    """A user without root installs with nothing left for pip. The prefix holds an older token."""
    there = home / (prefix or ".local/share/tunefarm")
    fake_environment(there)
    (there / "worker.env").write_text("tf")
    expected = home / file.format(prefix=str(there).replace("/", "-"))
    expected.parent.mkdir(parents=True)
    expected.write_text("old")
    expected.chmod(0o644)
    script = script_of(guarded, home)
    subprocess.run(["chown", "-R", "nobody", str(home)], check=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TUNEFARM_WORKER_TOKEN": TOKEN}
    environment |= {name: value.format(home=home) for name, value in variables.items()}
    command = [*AS_NOBODY, "sh", str(script), *([] if prefix is None else ["--prefix", str(there)])]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert TOKEN in expected.read_text()
    assert expected.stat().st_mode & 0o777 == 0o600
    holders = [one for one in home.rglob("*") if one.is_file() and TOKEN in one.read_text()]
    assert holders == [expected]
    assert not (there / "worker.env").exists()
    assert started(there)["TOKEN"] == TOKEN


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

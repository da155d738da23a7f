"""The command: its exit codes, its one line for every failure, and its output on success."""

from __future__ import annotations

import io
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.main import get_command

from core.exit_code import ExitCode
from core.job import MAX_TRIALS, JobState
from tests.onnx_models import masked_attention
from tests.unit.tunefarm.fake_service import MESSAGE, WORKER, FakeService, serving
from tests.unit.tunefarm.samples import job, task
from tunefarm.cli import app as cli_app
from tunefarm.cli import completion, live
from tunefarm.cli import tune as cli_tune
from tunefarm.cli.app import app, run
from tunefarm.cli.tune import TuneResult
from tunefarm.client.client import Client
from tunefarm.client.values import DeviceClass
from tunefarm.embedded.service import Service


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVER", "TOKEN", "HOST", "PORT", "GRPC_PORT"):
        monkeypatch.delenv(f"TUNEFARM_{name}", raising=False)
    monkeypatch.setenv("TUNEFARM_CONFIG", str(tmp_path / "no config.toml"))
    monkeypatch.setenv("TUNEFARM_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fake() -> Iterator[FakeService]:
    with serving(FakeService()) as service:
        yield service


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"onnx")
    return path


def failure(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line on stderr, besides the notice that a service is being started."""
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("starting the service")]
    assert len(lines) == 1, lines
    (line,) = lines
    assert line.startswith("tunefarm: ")
    assert captured.out == ""
    return line


@pytest.mark.parametrize(
    ("arguments", "code", "cause"),
    [
        ("tune", 2, "Missing argument 'MODEL'"),
        ("tune gone.onnx", 3, "no file gone.onnx"),
        ("tune .", 3, "is a folder"),
        ("tune net.onnx --trials 0", 2, "--trials"),
        ("tune net.onnx --trials -5", 2, "--trials"),
        ("tune net.onnx --trials many", 2, "--trials"),
        ("tune net.onnx --trials 99999999999999999999", 2, "--trials"),
        ("tune net.onnx --quantize int3", 2, "Invalid value for '--quantize': 'int3' is not one of"),
        ("check gone.onnx --baseline b --server http://127.0.0.1:9", 3, "no file gone.onnx"),
        ("tune net.onnx --minutes 0", 2, "--minutes must be more than 0"),
        ("tune net.onnx --minutes nan", 2, "--minutes must be more than 0"),
        ("tune net.onnx --latency-ms 0", 2, "--latency-ms must be more than 0"),
        ("tune net.onnx --until-gain 100", 2, "--until-gain must be between 0 and 100"),
        ("tune net.onnx --batch 0", 2, "--batch"),
        ("tune net.onnx --model-weight 0", 2, "--model-weight must be between"),
        ("tune net.onnx net.onnx", 2, "two models have the same file name"),
        ("tune net.onnx named.onnx --shape x=1", 2, "--shape doesn't fit: there is no input"),
        ("tune named.onnx --shape n=2,2 --shape m=1", 2, "a size of n is given twice"),
        ("tune named.onnx --shape n=0", 2, "all numbers above 0"),
        ("tune named.onnx", 3, "leaves dimensions open"),
        ("compile named.onnx --shape n=2,3", 2, "'m' open: give its size too"),
        ("tune net.onnx b.onnx --model-weight 2", 2, "--model-weight is given 1 times for 2 models"),
        ("tune net.onnx --shape x", 2, "NAME=1,3,224,224"),
        ("tune net.onnx --target a --target a", 2, "a --target is given twice: leave one out"),
        ("tune net.onnx --target a/b --target a:b", 2, "two targets would write to the folder a-b"),
        ("tune net.onnx --weight 0", 2, "--weight must be between"),
        ("tune net.onnx --weight nan", 2, "--weight must be between"),
        ("tune net.onnx --features avx2", 2, "--features is wrong: instruction sets are given up like this"),
        ("compile net.onnx --features -avx99", 2, "'avx99' is no instruction set of"),
        ("up --features -avx99", 2, "'avx99' is no instruction set of"),
        ("tune net.onnx --priority high", 2, "--priority"),
        ("tune net.onnx --build somewhere", 2, "--build"),
        ("tune net.onnx --seed -1", 2, "--seed"),
        ("tune net.onnx --output net.onnx", 8, "--output DIR"),
        ("tune net.onnx --server nowhere", 2, "http://"),
        ("tune net.onnx --data net.onnx", 8, "--data DIR"),
        ("up --host 0.0.0.0", 8, "set a token"),
        ("up --port 70000", 2, "--port"),
        ("up --host 192.0.2.1 --token t", 8, "can't listen on 192.0.2.1"),
        ("jobs", 4, "tunefarm up"),
        ("jobs --server http://127.0.0.1:9", 4, "no tunefarm service answers"),
        ("watch j1 --server http://127.0.0.1:9", 4, "no tunefarm service answers"),
        ("frobnicate", 2, "frobnicate"),
        ("jobs --colour", 2, "--colour"),
    ],
)
def test_a_failed_command_prints_one_line_and_returns_an_exit_code(
    arguments: str, code: int, cause: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.with_name("named.onnx").write_bytes(masked_attention("n", "m"))
    assert run(app, arguments.split()) == code
    assert cause in failure(capsys)


def test_a_port_in_use_is_named(fake: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    port = fake.url.rpartition(":")[2]
    assert run(app, ["up", "--port", port, "--grpc-port", "0"]) == ExitCode.LOCAL
    assert f"port {port} (Address already in use): choose another one with --port" in failure(capsys)


def test_tune_names_programs_by_path_where_the_environment_is_not_active(
    fake: FakeService, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    assert run(app, ["tune", str(model), "--server", fake.url]) == ExitCode.OK
    *_, run_line, compare = capsys.readouterr().out.splitlines()
    assert f" {Path(sys.executable).parent}/python -c " in run_line
    assert f" {Path(sys.executable).parent}/tunefarm bench " in compare


def test_tune_follows_the_job_and_unpacks_its_artifact(
    fake: FakeService, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    arguments = ["tune", str(model), "--server", fake.url, "--trials", "7", "--shape", "x=1,3", "--seed", "5"]
    assert run(app, arguments) == ExitCode.OK
    captured = capsys.readouterr()
    assert "conv1" in captured.out
    output = str(Path("net-tuned"))
    run_line = f"python -c 'import tunefarm_runtime; print(tunefarm_runtime.load(\"{output}\").benchmark())'"
    assert captured.out.splitlines()[-12:] == [
        "1.31 times as fast as ONNX Runtime 1.31.1 on this device (26.2 ms)",
        "tuned     20 ms   40.0x faster than untuned",
        "between   19.9 ms and 21.4 ms with 95% confidence; noisy: the device was disturbed",
        "kernels   6 ms   30% of it, timed one by one and added up",
        "untuned   800 ms",
        "footprint 48.2 MB of memory, 7.5 ms to load, 12.3 mJ a call",
        "message   the import could not be compared",
        f"artifact  {output}",
        "job       j1",
        f"page      {fake.url}/#/jobs/j1",
        f"run       {run_line}",
        f"compare   tunefarm bench {output} --against {model}",
    ]
    assert "net: tuning" in captured.err
    assert {file.name for file in Path("net-tuned").iterdir()} == {"model.so", "manifest.json"}
    (sent,) = fake.requests
    assert (sent["model"], sent["trials"], sent["shapes"], sent["seed"]) == ("ab", 7, {"x": [1, 3]}, 5)


def test_tune_says_how_to_see_the_page_of_a_service_that_ends(
    fake: FakeService,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def embedded(*_: object) -> Iterator[Service]:
        with Client(fake.url) as client:
            yield Service(client, embedded=True)

    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.setattr(cli_tune, "connect_or_start", embedded)
    assert run(app, ["tune", str(model), "--target", "pi"]) == ExitCode.OK
    data = f"--data {tmp_path / 'data'}"
    assert (
        f"page      `tunefarm up {data}`, then http://127.0.0.1:8760/#/jobs/j1; "
        f"or as a file: `tunefarm report j1 {data}`"
    ) in capsys.readouterr().out.splitlines()


def test_kernels_that_take_many_times_as_long_are_no_percentage() -> None:
    tasks = [task("conv1", weight=2, best_s=0.003)]
    done = job(state=JobState.DONE, tuned_latency_s=37e-6, untuned_latency_s=1e-3)
    console = Console(file=io.StringIO(), width=200)
    TuneResult(done, tasks, Path("net-tuned"), Path("net.onnx")).print(console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "6 ms   162.2 times as long, timed one by one: in the model, weights stay" in text
    assert "16216%" not in text


def test_each_target_gets_a_job_and_a_folder(
    fake: FakeService, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--server", fake.url, "--target", "pi", "--target", "Jetson Orin"]
    assert run(app, ["tune", str(model), *flags]) == ExitCode.OK
    assert [sent.get("target") for sent in fake.requests] == ["pi", "Jetson Orin"]
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "target model untuned tuned vs. untuned vs. ONNX Runtime",
        "pi net 800 ms 20 ms 40.00x 1.31x",
        "Jetson Orin net 800 ms 20 ms 40.00x 1.31x",
        "",
        "pi, net: net-tuned/pi, job j1",
        "Jetson Orin, net: net-tuned/Jetson-Orin, job j2",
    ]
    for place in ("pi", "Jetson-Orin"):
        assert (Path("net-tuned") / place / "model.so").exists()
    assert run(app, ["tune", str(model), *flags, "--json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert [one["job"]["target"] for one in found] == ["pi", "Jetson Orin"]


def test_a_matrix_has_models_as_rows_and_ready_devices_as_columns(
    fake: FakeService, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.device_classes = [asdict(DeviceClass(key, name, 4, 16)) for key, name in BOARDS.items()]
    fake.workers = [WORKER | {"device_class": key} for key in ("cafe", "beef")]
    assert run(app, ["tune", str(model), "--matrix", "--server", fake.url]) == ExitCode.OK
    assert [sent.get("target") for sent in fake.requests] == ["a board", "beef"]
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "model a board another (w1)",
        "net 20 ms (1.31x ONNX Runtime) 20 ms (1.31x ONNX Runtime)",
    ]
    fake.workers = []
    assert run(app, ["tune", str(model), "--matrix", "--server", fake.url]) == ExitCode.REFUSED
    assert "no device is ready: attach one with `tunefarm worker`" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--matrix"]])
def test_targets_that_are_given_by_their_keys_have_names(
    fake: FakeService, model: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    fake.device_classes = [asdict(DeviceClass(key, name, 4, 16)) for key, name in BOARDS.items()]
    fake.workers = [WORKER | {"device_class": key} for key in ("cafe", "beef")]
    targets = ["--target", "cafe", "--target", "beef", "--target", "native"]
    assert run(app, ["tune", str(model), *flags, *targets, "--server", fake.url]) == ExitCode.OK
    assert [sent.get("target", "native") for sent in fake.requests] == ["cafe", "beef", "native"]
    shown = capsys.readouterr().out
    for name, folder in (("a board", "a-board"), ("another (w1)", "another-w1"), ("native", "native")):
        assert name in shown
        assert (Path("net-tuned") / folder / "model.so").exists()
    assert "cafe" not in shown
    assert "beef" not in shown


# Two classes share a name, and the last class has no worker.
BOARDS = {"cafe": "a board", "beef": "another", "dead": "another"}


def test_the_folders_and_jobs_of_targets_stay_whole_on_a_terminal(
    fake: FakeService, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminal = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr("tunefarm.cli.tune.stdout", lambda: terminal)
    output = tmp_path / ("a-long-name-of-a-folder-" * 4)
    flags = ["--server", fake.url, "--target", "a board (worker1)", "--target", "orin"]
    assert run(app, ["tune", str(model), *flags, "--output", str(output)]) == ExitCode.OK
    assert isinstance(terminal.file, io.StringIO)
    table, places = terminal.file.getvalue().split("\n\n")
    assert max(map(len, table.splitlines())) <= 80
    for part in ("a board (worker1)", "40.00x", "1.31x"):
        assert part in table
    assert places.splitlines()[1] == f"orin, net: {output}/orin, job j2"


def test_a_target_that_fails_is_in_the_table(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeService(end=JobState.FAILED, error="no such board")) as failing:
        flags = ["--server", failing.url, "--target", "pi", "--target", "orin"]
        assert run(app, ["tune", str(model), *flags]) == ExitCode.JOB_FAILED
    shown = capsys.readouterr()
    assert shown.out.count("failed") == shown.out.count("no such board") == 2
    assert "tunefarm: job j1 failed: no such board" in shown.err


def test_watch_ends_with_the_message(fake: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["watch", "j1", "--server", fake.url]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[-1] == MESSAGE


def test_tune_as_json_prints_nothing_else(
    fake: FakeService, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, ["tune", str(model), "--server", fake.url, "--json", "--output", "out"]) == ExitCode.OK
    captured = capsys.readouterr()
    assert captured.err == ""
    result = json.loads(captured.out)
    assert result["speedup"] == pytest.approx(40.0)
    assert result["artifact"] == "out"
    assert result["job"]["onnxruntime"]["ratio"] == 1.31
    assert result["tasks"][0]["name"] == "conv1"


def test_a_folder_of_checkpoints_beside_the_model_stays(fake: FakeService, model: Path) -> None:
    own = model.parent / "weights"  # what a model of several sizes has within its folder
    own.mkdir()
    for name in ("best.pt", "f" * 64):
        (own / name).write_bytes(b"trained")
    assert run(app, ["tune", str(model), "--server", fake.url]) == ExitCode.OK
    assert (model.parent / "net-tuned" / "model.so").exists()
    assert {file.name for file in own.iterdir()} == {"best.pt", "f" * 64}


def test_priority_and_weight_are_sent_when_they_are_given(fake: FakeService, model: Path) -> None:
    assert run(app, ["tune", str(model), "--server", fake.url]) == ExitCode.OK
    flags = ["--priority", "-2", "--weight", "2.5"]
    assert run(app, ["tune", str(model), "--server", fake.url, *flags]) == ExitCode.OK
    plain, heavy = fake.requests
    assert "priority" not in plain
    assert "weight" not in plain
    assert (heavy["priority"], heavy["weight"]) == (-2, 2.5)


@pytest.mark.parametrize("command", ["tune", "compile"])
def test_exact_is_sent_if_given(command: str, fake: FakeService, model: Path) -> None:
    for flags in ([], ["--exact"]):
        assert run(app, [command, str(model), "--server", fake.url, *flags]) == ExitCode.OK
    plain, exact = fake.requests
    assert "exact" not in plain
    assert exact["exact"] is True


@pytest.mark.parametrize("command", ["tune", "compile"])
def test_tf32_is_sent_if_given_and_conflicts_with_exact(command: str, fake: FakeService, model: Path) -> None:
    for flags in ([], ["--tf32"]):
        assert run(app, [command, str(model), "--server", fake.url, *flags]) == ExitCode.OK
    plain, rounded = fake.requests
    assert "tf32" not in plain
    assert rounded["tf32"] is True
    flags = ["--tf32", "--exact"]
    assert run(app, [command, str(model), "--server", fake.url, *flags]) == ExitCode.USAGE
    assert len(fake.requests) == 2


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--calibration", "x.npz"], "--calibration is used to quantize a model: add --quantize int8"),
        (["--tf32", "--exact"], "--tf32 is not exact: leave --exact or --tf32 out"),
        (["--weight", "nan"], "--weight must be between 0.001 and 1000.0, not nan"),
    ],
)
def test_options_are_named_as_they_are_typed(
    flags: list[str], says: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("tune", "compile"):
        assert run(app, [command, str(model), *flags]) == ExitCode.USAGE
        assert capsys.readouterr().err == f"tunefarm: {says}\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names an instruction set of x86")
@pytest.mark.parametrize("command", ["tune", "compile"])
def test_features_are_refused_where_a_service_runs_already(
    command: str, fake: FakeService, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, [command, str(model), "--server", fake.url, "--features", "-avx2"]) == ExitCode.USAGE
    assert "give --features to one of them, `tunefarm worker --features`" in failure(capsys)
    assert not fake.requests


def test_the_builder_option_is_sent_if_given(fake: FakeService, model: Path) -> None:
    assert run(app, ["tune", str(model), "--server", fake.url]) == ExitCode.OK
    assert run(app, ["tune", str(model), "--server", fake.url, "--build", "builder"]) == ExitCode.OK
    plain, built = fake.requests
    assert "build" not in plain
    assert built["build"] == "builder"


def test_minutes_alone_are_the_budget(fake: FakeService, model: Path) -> None:
    assert run(app, ["tune", str(model), "--server", fake.url, "--minutes", "2"]) == ExitCode.OK
    assert fake.requests[0]["minutes"] == 2.0
    assert fake.requests[0]["trials"] >= 1_000_000


def test_goals_are_sent_in_the_service_s_units(fake: FakeService, model: Path) -> None:
    flags = ["--latency-ms", "2.5", "--until-gain", "0.5", "--batch", "16", "--objective", "speedup"]
    assert run(app, ["tune", str(model), "--server", fake.url, *flags]) == ExitCode.OK
    (sent,) = fake.requests
    assert (sent["latency_s"], sent["min_gain"], sent["batch"]) == (0.0025, 0.005, 16)
    assert (sent["objective"], sent["trials"]) == ("speedup", MAX_TRIALS)


def test_several_models_are_one_request_with_a_folder_per_model(
    fake: FakeService, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = model.with_name("other.onnx")
    other.write_bytes(b"onnx too")
    fake.members = ("j1", "j1-2")
    flags = ["--model-weight", "2", "--model-weight", "1", "--trials", "9", "--output", "out"]
    assert run(app, ["tune", str(model), str(other), "--server", fake.url, *flags]) == ExitCode.OK
    (sent,) = fake.requests
    assert (sent["model_weight"], sent["trials"]) == (2.0, 9)
    assert sent["others"] == [{"model": "ab", "shapes": {}, "model_weight": 1.0, "latency_s": None}]
    for folder in ("net-tuned", "other-tuned"):
        assert (Path("out") / folder / "model.so").exists()
    assert capsys.readouterr().out.count("tuned     20 ms") == 2


def test_sizes_are_one_request_with_a_folder_per_size(fake: FakeService, model: Path) -> None:
    model.write_bytes(masked_attention(1, "tokens"))
    fake.members = ("j1", "j1-2")
    flags = ["--shape", "tokens=8,32", "--trials", "9", "--model-weight", "2"]
    assert run(app, ["tune", str(model), "--server", fake.url, *flags]) == ExitCode.OK
    (sent,) = fake.requests
    assert (sent["shapes"], sent["objective"]) == ({"input": [1, 8, 16], "mask": [1, 8]}, "speedup")
    shapes = {"input": [1, 32, 16], "mask": [1, 32]}
    assert sent["others"] == [{"model": "ab", "shapes": shapes, "model_weight": 2.0, "latency_s": None}]
    for folder in ("tokens=8", "tokens=32"):
        assert (Path("net-tuned") / folder / "model.so").exists()


def test_compile_asks_for_no_trials(fake: FakeService, model: Path) -> None:
    assert run(app, ["compile", str(model), "--server", fake.url]) == ExitCode.OK
    assert fake.requests[0]["compile_only"] is True
    assert fake.requests[0]["trials"] == 0


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        (JobState.FAILED, ExitCode.JOB_FAILED, "job j1 failed: the operator Foo is unknown"),
        (JobState.CANCELLED, ExitCode.JOB_CANCELLED, "job j1 was cancelled"),
    ],
)
def test_a_job_without_an_artifact_has_a_separate_exit_code(
    end: JobState, code: ExitCode, said: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(FakeService(end=end, error="the operator Foo is unknown")) as fake:
        assert run(app, ["tune", str(model), "--server", fake.url, "--json"]) == code
        assert said in failure(capsys)
        assert run(app, ["watch", "j1", "--server", fake.url]) == code
    assert list(Path("net-tuned").iterdir()) == []


@pytest.mark.parametrize(("status", "code"), [(422, 3), (413, 3), (401, 5), (503, 5), (507, 5)])
def test_a_refusal_is_printed_in_the_services_words(
    status: int, code: int, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = {"status": status, "title": "No", "detail": "Because of the weather:\n wait for sun."}
    with serving(FakeService(refusal=refusal)) as fake:
        assert run(app, ["tune", str(model), "--server", fake.url]) == code
    assert "Because of the weather: wait for sun." in failure(capsys)


def test_jobs_and_workers_are_listed_cancelled_and_deleted(
    fake: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, part in ((["jobs"], "net"), (["jobs", "j1"], "conv1"), (["workers"], "a board")):
        assert run(app, [*arguments, "--server", fake.url]) == ExitCode.OK
        assert part in capsys.readouterr().out
        assert run(app, [*arguments, "--server", fake.url, "--json", "--quiet"]) == ExitCode.OK
        json.loads(capsys.readouterr().out)
    assert run(app, ["cancel", "j1", "--server", fake.url]) == ExitCode.OK
    assert "job j1 is cancelled" in capsys.readouterr().out
    assert run(app, ["delete", "j1", "--server", fake.url]) == ExitCode.OK
    assert "job j1 is deleted" in capsys.readouterr().out
    assert run(app, ["delete", "j1", "--server", fake.url, "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == {"deleted": "j1"}
    assert fake.acted == ["/v1/jobs/j1"] * 2


def test_the_start_of_an_id_is_enough(
    fake: FakeService, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for command in ("jobs", "watch", "cancel", "report", "delete"):
        flags = ["--output", str(tmp_path / "report.html")] if command == "report" else []
        assert run(app, [command, "j", *flags, "--server", fake.url]) == ExitCode.OK
    assert fake.acted == ["/v1/jobs/j1"]


def test_the_start_of_two_ids_is_refused(fake: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    fake.job_ids = ("j1", "j2")
    assert run(app, ["delete", "j", "--server", fake.url]) == ExitCode.REFUSED
    assert "several jobs start with 'j' (j1, j2): give more of the id" in failure(capsys)
    assert run(app, ["delete", "j1", "--server", fake.url]) == ExitCode.OK
    assert fake.acted == ["/v1/jobs/j1"]


def test_the_accuracy_of_cost_models_is_shown(fake: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["model", "--server", fake.url]) == ExitCode.OK
    _, told, untold, legend, *_ = capsys.readouterr().out.splitlines()
    for part in ("a board", "cafe", "12", "1000", "750 ms", "6.5 s", "0.958 / -0.500", "0.624 / -"):
        assert part in told
    assert untold.split()[-4:] == ["-"] * 4
    assert "learned / analytic" in legend
    assert run(app, ["model", "--server", fake.url, "--json"]) == ExitCode.OK
    first, _ = json.loads(capsys.readouterr().out)
    assert first["metrics"]["tasks"]["hash of conv1"]["analytic"]["pairwise"] == 0.75
    assert run(app, ["model", "--device", "toaster", "--server", fake.url]) == ExitCode.OK
    assert "no cost model was trained yet" in capsys.readouterr().out


def test_an_unmeasured_schedule_is_shown_as_imported(
    fake: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.device_classes = [{"key": "cafe", "name": "a board", "cores": 4, "vector_bytes": 16}]
    assert run(app, ["best", "abc", "--server", fake.url]) == ExitCode.OK
    said = "imported, not measured here; its database reports 1 ms on a board"
    assert said in capsys.readouterr().out


def test_imported_schedules_are_deleted(fake: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["delete-imported", "--target", "a board", "--workload", "abc", "--server", fake.url]
    assert run(app, command) == ExitCode.OK
    assert fake.acted == ["/v1/schedules/imported?target=a+board&workload=abc"]
    assert "5 imported records are deleted on cafe" in capsys.readouterr().out


def test_help_names_every_command_and_its_page_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, []) == ExitCode.OK
    listed, _, others = capsys.readouterr().out.partition("Also:")
    for command in ("tune", "up", "worker", "jobs", "watch", "cancel", "best", "show", "doctor", "workers"):
        assert f"\n  {command} " in listed
    for command in ("verify", "server", "scheduler", "delete", "delete-imported", "calibrate"):
        assert command in others
    page = (Path(__file__).parents[3] / "docs/commands.md").read_text()
    for code in ExitCode:
        assert f"| {int(code)} | {code.meaning} |" in page


def test_a_closed_output_pipe_is_not_an_error() -> None:
    """As in `tunefarm ... | head -c 1`: the pipe is closed before Python flushes its buffer at the exit."""
    code = "import sys; sys.argv = ['tunefarm', '--help']; from tunefarm.cli.app import main; main()"
    reading, writing = os.pipe()
    os.close(reading)
    root = Path(__file__).parents[3]
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=root, stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_command_starts_without_a_compiler_or_a_server() -> None:
    heavy = "tvm onnx numpy sqlalchemy celery grpc fastapi xgboost supervisor"
    code = f"import sys, tunefarm.cli.app; print([m for m in '{heavy}'.split() if m in sys.modules])"
    root = Path(__file__).parents[3]
    shown = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_the_first_page_of_help_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, []) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 32
    assert max(map(len, lines)) <= 80


def test_the_shell_completes_ids_and_is_silent_without_a_service(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert completion.job_ids("") == []
    monkeypatch.setenv("TUNEFARM_SERVER", fake.url)
    [(name, _)] = completion.job_ids("")
    assert completion.job_ids(name[:1]) == completion.job_ids("")
    assert completion.job_ids("~") == []
    assert completion.worker_names("w") == [("w1", "a board")]


def test_live_tables_are_for_terminals(fake: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("jobs", "workers"):
        assert run(app, [command, "--live", "--server", fake.url]) == ExitCode.USAGE
        assert "--live needs a terminal" in failure(capsys)


def test_a_live_table_is_drawn_until_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "stdout", lambda: Console(file=io.StringIO(), force_terminal=True))
    drawn: list[int] = []

    def draw() -> str:
        drawn.append(1)
        return "table"

    def sleep(_: float) -> None:
        if len(drawn) == 3:
            raise KeyboardInterrupt

    live.show_live(draw, sleep)
    assert len(drawn) == 3


def commands_of(command: Any, words: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return a command and its subcommands by their words, except those that hand their arguments on."""
    found = {words: command}
    for name, one in getattr(command, "commands", {}).items():
        if not one.context_settings.get("ignore_unknown_options"):
            found |= commands_of(one, (*words, name))
    return found


COMMANDS = commands_of(get_command(app))
RESULTS = {words: one for words, one in COMMANDS.items() if words not in [(), ("mcp",)]}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_fits_a_narrow_terminal_with_whole_sentences(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    texts = []
    for flag in ("-h", "--help"):
        assert run(app, [*command, flag]) == ExitCode.OK
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert max(map(len, texts[0].splitlines())) <= 80
    assert "..." not in texts[0].partition("Commands:")[2]


def test_every_command_with_a_result_takes_json_and_quiet() -> None:
    for words, command in RESULTS.items():
        flags = {flag for parameter in command.params for flag in parameter.opts}
        if getattr(command, "commands", None) and not command.invoke_without_command:
            continue
        assert "--json" in flags, words
        assert "--quiet" in flags or hasattr(command, "commands"), words


def test_the_first_page_of_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, []) == ExitCode.OK
    named = capsys.readouterr().out.partition("Commands:")[2].replace(",", " ").replace(".", " ").split()
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert set(commands) <= set(named)


def test_a_quiet_command_prints_its_result_alone(
    fake: FakeService, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compile", str(model), "--output", str(tmp_path / "out"), "--server", fake.url]
    for flags in ([], ["--quiet"], ["-q"]):
        assert run(app, [*command, *flags]) == ExitCode.OK
        printed = capsys.readouterr()
        assert "artifact" in printed.out
        assert (printed.err == "") is bool(flags)
    assert run(app, ["compile", str(tmp_path / "none"), "--quiet"]) == ExitCode.BAD_INPUT
    assert "there is no file" in failure(capsys)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["--version"]) == ExitCode.OK
    assert capsys.readouterr().out == f"tunefarm {version('tunefarm')}\n"


def test_a_second_interruption_ends_the_command_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_app, "run", interrupted)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit) as ended:
            cli_app.main()
        assert {signal.getsignal(number) for number in before} == {signal.SIG_DFL}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended.value.code == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "tunefarm: interrupted\n"

"""`tunefarm tune` on a tiny network: the real stack, from an ONNX file to a library that runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import onnxruntime
import psutil
import pytest
import tunefarm_runtime

from tests.acceptance.commands import done, tunefarm
from tests.onnx_models import residual

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RUN = """
import sys
import numpy as np, tunefarm_runtime
(output,) = tunefarm_runtime.load(sys.argv[1])(np.load(sys.argv[2]))
np.save(sys.argv[3], output)
"""


def test_a_model_is_tuned_compiled_again_and_computes_the_same(
    model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    import numpy as np

    result = json.loads(done(tunefarm(["tune", model, "--trials", 12, "--json"], environment, tmp_path)))
    assert result["job"]["state"] == "done"
    assert result["tuned_latency_s"] <= result["untuned_latency_s"]
    peer = result["job"]["onnxruntime"]
    assert (peer["version"], peer["note"]) == (onnxruntime.__version__, "")
    assert peer["ratio"] == pytest.approx(peer["latency_s"] / result["tuned_latency_s"])
    # On a disturbed machine, the best schedules are measured again.
    assert sum(task["trials"] for task in result["tasks"]) >= 12
    assert [task["name"] for task in result["tasks"] if task["best_s"] is None] == []

    compiled = json.loads(
        done(tunefarm(["compile", model, "--output", "again", "--bundle", "--json"], environment, tmp_path))
    )
    assert compiled["job"]["trials_done"] == 0
    kept = [
        json.loads((tmp_path / folder / "manifest.json").read_text()) for folder in ("tiny-tuned", "again")
    ]
    traces = [{task["workload"]: task["trace"] for task in manifest["tasks"]} for manifest in kept]
    assert traces[0] == traces[1]

    image = np.random.default_rng(1).standard_normal((1, 3, 8, 8), dtype=np.float32)
    np.save(tmp_path / "in.npy", image)
    files = [str(tmp_path / name) for name in ("again", "in.npy", "out.npy")]
    subprocess.run([sys.executable, "-c", RUN, *files], check=True, env=environment)
    reference = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (expected,) = reference.run(None, {"input": image})
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-3, atol=1e-4)

    # The bundle builds and runs without anything else.
    again = tmp_path / "again"
    sources = [str(again / name) for name in ("main.c", "tunefarm.c")]
    flags = ["-I", str(again), "-I", str(again / "include"), f"-L{again / 'lib'}", "-l:libtvm_ffi.so", "-ldl"]
    subprocess.run(
        ["gcc", *sources, *flags, f"-Wl,-rpath,{again / 'lib'}", "-o", str(tmp_path / "main")], check=True
    )
    ran = subprocess.run([str(tmp_path / "main"), str(again)], capture_output=True, text=True, check=True)
    (found,) = tunefarm_runtime.load(again)(np.ones((1, 3, 8, 8), np.float32))
    printed = [float(word) for word in ran.stdout.partition(":")[2].split()]
    np.testing.assert_allclose(printed, found.ravel()[:5], rtol=1e-4)


@pytest.mark.slow_lane(seconds=20)
def test_two_models_of_a_batch_are_tuned_together_and_right_on_any_number_of_threads(
    environment: dict[str, str], tmp_path: Path
) -> None:
    import numpy as np

    for name, size in (("small", 8), ("large", 16)):
        (tmp_path / f"{name}.onnx").write_bytes(residual(batch="n", size=size))
    flags = ["--batch", 3, "--trials", 40, "--model-weight", 2, "--model-weight", 1, "--json"]
    results = json.loads(done(tunefarm(["tune", "small.onnx", "large.onnx", *flags], environment, tmp_path)))
    jobs = [result["job"] for result in results]
    assert [job["end_reason"] for job in jobs] == ["trials", "trials"]
    assert jobs[0]["members"] == jobs[1]["members"] == [job["id"] for job in jobs]
    assert sum(job["trials_done"] for job in jobs) >= 40
    for name, size in (("small", 8), ("large", 16)):
        image = np.random.default_rng(1).standard_normal((3, 3, size, size), dtype=np.float32)
        np.save(tmp_path / "in.npy", image)
        reference = onnxruntime.InferenceSession(
            str(tmp_path / f"{name}.onnx"), providers=["CPUExecutionProvider"]
        )
        (expected,) = reference.run(None, {"input": image})
        for threads in sorted({1, 2, os.cpu_count() or 1}):
            files = [str(tmp_path / one) for one in (f"{name}-tuned", "in.npy", "out.npy")]
            settings = environment | {"TVM_NUM_THREADS": str(threads)}
            subprocess.run([sys.executable, "-c", RUN, *files], check=True, env=settings)
            np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow_lane(seconds=20)
def test_a_model_is_quantized_and_its_artifact_runs_with_own_inputs(
    model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    import numpy as np

    images = np.random.default_rng(1).standard_normal((8, 3, 8, 8), np.float32)
    np.savez(tmp_path / "data.npz", input=images)
    np.savez(tmp_path / "one.npz", input=images[:1])
    flags = ["--trials", 8, "--quantize", "int8", "--calibration", "data.npz", "--json"]
    result = json.loads(done(tunefarm(["tune", model, *flags], environment, tmp_path)))
    assert (result["job"]["quantize"], len(result["job"]["calibration"])) == ("int8", 64)
    assert result["quantization"]["samples"] == 8
    assert {layer["operator"] for layer in result["quantization"]["layers"]} >= {"Conv", "Gemm"}
    assert "quantized (int8): " in result["job"]["message"]
    tuned = tmp_path / "tiny-tuned"
    manifest = json.loads((tuned / "manifest.json").read_text())
    assert manifest["quantization"]["outputs"] == result["quantization"]["outputs"]

    run = ["infer", result["job"]["id"], "--inputs", "one.npz", "--out", "out.npz", "--json"]
    inferred = json.loads(done(tunefarm(run, environment, tmp_path)))
    [difference] = inferred["inference"]["comparison"]["outputs"]
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    [wanted] = session.run(None, {"input": images[:1]})
    found = np.load(tmp_path / "out.npz")[difference["name"]]
    assert difference["largest"] == pytest.approx(np.abs(found - wanted).max(), rel=1e-3)
    [computed] = tunefarm_runtime.load(tmp_path / "tiny-tuned")(images[:1])
    np.testing.assert_allclose(found, computed, rtol=1e-5)

    # The quantized model came along, and the library is that one.
    quantized = onnx.load(tuned / "quantized.onnx")
    assert any(node.op_type == "QuantizeLinear" for node in quantized.graph.node)
    other = tunefarm(["verify", tuned, "--against", model], environment, tmp_path)
    assert "the service quantized the model, so compare with quantized.onnx" in other.communicate()[1]
    done(tunefarm(["verify", tuned, "--against", tuned / "quantized.onnx"], environment, tmp_path))

    # Data with wrong shapes fails the job. A file that isn't an archive isn't even sent.
    np.savez(tmp_path / "bad.npz", input=images)
    bad = tunefarm(
        ["infer", result["job"]["id"], "--inputs", "bad.npz", "--out", "o.npz"], environment, tmp_path
    )
    assert "has the shape (8, 3, 8, 8), and the model's input (1, 3, 8, 8)" in bad.communicate()[1]
    assert bad.returncode == 6
    wrong = tunefarm(["tune", model, "--quantize", "int8", "--calibration", model], environment, tmp_path)
    assert "is no .npz file" in wrong.communicate()[1]
    assert wrong.returncode == 3


@pytest.mark.slow_lane(seconds=20)
def test_an_interrupted_job_resumes_and_nothing_runs_in_between(
    model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    arguments = ["tune", model, "--trials", 24, "--output", "out"]
    first = tunefarm(arguments, environment, tmp_path)
    assert first.stderr is not None
    for line in first.stderr:
        if "measuring" in line:
            break
    family = psutil.Process(first.pid).children(recursive=True)
    first.send_signal(signal.SIGINT)
    _, errors = first.communicate()
    assert first.returncode == 130
    assert "give the same command to continue" in errors
    gone, alive = psutil.wait_procs(family, timeout=10)
    assert len(gone) >= 4
    assert not alive

    second = tunefarm(arguments, environment, tmp_path)
    _, errors = second.communicate()
    assert second.returncode == 0, errors
    assert "resuming job" in errors


@pytest.mark.slow_lane(seconds=20)
def test_a_service_that_is_up_serves_commands_and_keeps_its_folder(
    model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    up = tunefarm(["up", "--port", 0, "--grpc-port", 0], environment, tmp_path)
    assert up.stdout is not None
    url = up.stdout.readline().split()[-1]
    try:
        second = tunefarm(["up", "--port", 0, "--grpc-port", 0], environment, tmp_path)
        _, errors = second.communicate()
        assert second.returncode == 8
        assert url in errors
        result = json.loads(done(tunefarm(["tune", model, "--trials", 8, "--json"], environment, tmp_path)))
        listed = json.loads(done(tunefarm(["jobs", "--json"], environment, tmp_path)))
        assert [job["id"] for job in listed] == [result["job"]["id"]]
        assert "records of" in done(tunefarm(["export", "--output", "exported"], environment, tmp_path))
        assert "0 of" in done(tunefarm(["import", "exported"], environment, tmp_path))
    finally:
        started = time.monotonic()
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=60)
    assert up.returncode == 0
    assert time.monotonic() - started < 30.0

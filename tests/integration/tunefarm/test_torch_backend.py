"""`torch.compile(model, backend="tunefarm")`, found by its entry point."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tunefarm_runtime.library  # noqa: E402

from compiler import fallback  # noqa: E402
from compiler.target import detect_device  # noqa: E402
from compiler.workload import from_json  # noqa: E402
from core.exit_code import ExitCode  # noqa: E402
from system.command import CommandError  # noqa: E402
from tests import torch_models, workloads  # noqa: E402
from tests.unit.records.farm import make_job, put_measured  # noqa: E402
from tunefarm.client.client import Client  # noqa: E402
from tunefarm.embedded import stack  # noqa: E402
from tunefarm.torch_backend import MAX_SIZES, exported_graph, libraries  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
LOGGER = "tunefarm.torch_backend"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No service, an empty data folder, no cache of PyTorch's, equal random numbers."""
    monkeypatch.delenv("TUNEFARM_SERVER", raising=False)
    monkeypatch.setenv("TUNEFARM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
    gc.collect()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, LOGGER)
    return caplog


def _flat(outputs: Any) -> list[Any]:
    return [one for one in torch.utils._pytree.tree_leaves(outputs) if one is not None]


def _agree(found: Any, wanted: Any) -> None:
    for one, other in zip(_flat(found), _flat(wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def _compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="tunefarm", **({"options": options} if options else {}))


def _messages(lines: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in lines.records if record.name.startswith(LOGGER)]


@pytest.mark.parametrize("name", torch_models.MODELS)
def test_a_network_computes_the_same_in_a_library(name: str, lines: pytest.LogCaptureFixture) -> None:
    make, draw = torch_models.MODELS[name]
    model, inputs = make().eval(), draw()
    run = _compiled(model)
    with torch.no_grad():
        _agree(run(*inputs), model(*inputs))
        again = draw()
        _agree(run(*again), model(*again))
    [line] = _messages(lines)
    assert line.startswith("compiled a graph with 0 of ")


def test_gradients_are_computed_by_pytorch(lines: pytest.LogCaptureFixture) -> None:
    model, inputs = torch_models.Mixer(), (torch.randn(2, 16, 32),)
    _compiled(model)(*inputs).sum().backward()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(*inputs).sum().backward()
    _agree(found, [parameter.grad for parameter in model.parameters()])
    [line] = _messages(lines)
    assert "its gradients are asked for" in line


def test_training_without_gradients_writes_running_means(lines: pytest.LogCaptureFixture) -> None:
    found, wanted = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)
    x = torch.randn(8, 4)
    with torch.no_grad():
        _agree(_compiled(found)(x), wanted(x))
    _agree(found.state_dict(), wanted.state_dict())
    assert "writes into" in _messages(lines)[-1]


def test_a_graph_break_leaves_the_rest_compiled(lines: pytest.LogCaptureFixture) -> None:
    first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def run(x: Any) -> Any:
        x = torch.relu(first(x))
        torch._dynamo.graph_break()
        return torch.relu(second(x))

    x = torch.randn(4, 8)
    with torch.no_grad():
        _agree(_compiled(run)(x), run(x))
    assert len(_messages(lines)) == 2
    assert all(line.startswith("compiled a graph") for line in _messages(lines))


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x + torch.rand_like(x) * 0,
        lambda x: torch.fft.fft(x).abs(),
        lambda x: torch.linalg.svd(x)[1],
    ],
    ids=["random numbers", "complex numbers", "an operator that is unknown"],
)
def test_an_uncompilable_graph_runs_in_pytorch(run: Any, lines: pytest.LogCaptureFixture) -> None:
    x = torch.randn(4, 4)
    with torch.no_grad():
        compiled = _compiled(run)
        _agree(compiled(x), run(x))
        _agree(compiled(x), run(x))
    [line] = _messages(lines)
    assert line.startswith("torch.compile: a graph runs in PyTorch: ")


def test_a_wrong_library_is_not_used(
    monkeypatch: pytest.MonkeyPatch, lines: pytest.LogCaptureFixture
) -> None:
    call = exported_graph.TorchLibrary.__call__
    monkeypatch.setattr(
        exported_graph.TorchLibrary, "__call__", lambda self, args: [one * 1.01 for one in call(self, args)]
    )
    x = torch.randn(4, 8)
    with torch.no_grad():
        _agree(_compiled(torch.relu)(x), torch.relu(x))
    assert "the library computes something else" in _messages(lines)[-1]


def test_new_weights_are_not_ignored() -> None:
    model, x = torch.nn.Linear(8, 4), torch.randn(2, 8)
    run = _compiled(model)
    with torch.no_grad():
        run(x)
        model.weight.mul_(2)
        _agree(run(x), model(x))
        model.weight.data = torch.ones(4, 8)
        _agree(run(x), model(x))


def test_open_dimensions_have_a_library_for_each_size(lines: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
    run = torch.compile(model, backend="tunefarm", dynamic=True)
    with torch.no_grad():
        for size in (2, 3, 5, 3, 2):
            x = torch.randn(size, 8)
            _agree(run(x), model(x))
    assert len(_messages(lines)) == 3
    with torch.no_grad():
        for size in range(2, MAX_SIZES + 6):
            x = torch.randn(size, 8)
            _agree(run(x), model(x))
    assert len(_messages(lines)) == MAX_SIZES


def test_a_networks_numbers_are_constants_where_all_sizes_are_open(lines: pytest.LogCaptureFixture) -> None:
    """PyTorch passes the momentum and the epsilon of a batch norm as tensors then."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()).eval()
    run = torch.compile(model, backend="tunefarm", dynamic=True)
    with torch.no_grad():
        for size in (2, 3):
            x = torch.randn(size, 3, 8, 8)
            _agree(run(x), model(x))
        model[1].eps = 0.5
        _agree(run(x), model(x))
    assert [line.partition(" with ")[0] for line in _messages(lines)] == ["compiled a graph"] * 3


def test_tensors_are_shared_and_results_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = torch.nn.Linear(64, 64), torch.randn(16, 64)
    run = _compiled(model)
    with torch.inference_mode():
        first = run(x)

        def refuse(*_: object) -> None:
            raise AssertionError("it copies")

        monkeypatch.setattr(tunefarm_runtime.library._Input, "_copied", refuse)
        kept, other = run(x), run(torch.zeros(16, 64))
    _agree(kept, first)
    assert not torch.equal(kept, other)


def test_half_floats_and_several_outputs_agree_with_pytorch(lines: pytest.LogCaptureFixture) -> None:
    def run(x: Any, y: Any) -> Any:
        total = (x * 2 + y).relu()
        return total, None, (x > y), total.argmax(-1), total

    x, y = torch.randn(4, 8, dtype=torch.bfloat16), torch.randn(4, 8, dtype=torch.bfloat16)
    with torch.no_grad():
        found, wanted = _compiled(run)(x, y), run(x, y)
    assert found[1] is None
    assert [one.dtype for one in _flat(found)] == [one.dtype for one in _flat(wanted)]
    _agree([found[0].float(), *found[2:4]], [wanted[0].float(), *wanted[2:4]])
    assert _messages(lines)[-1].startswith("compiled a graph")


def test_schedules_of_the_local_database_are_used(lines: pytest.LogCaptureFixture) -> None:
    model, x = torch.nn.Linear(64, 64).eval(), torch.randn(16, 64)
    _store(model, x, lambda module_json: fallback.trace(from_json(module_json)))
    with torch.no_grad():
        _agree(_compiled(model)(x), model(x))
    assert _messages(lines)[-1].startswith("compiled a graph with 1 of ")


def test_a_schedule_that_does_not_apply_is_not_used(lines: pytest.LogCaptureFixture) -> None:
    """The rest of the graph keeps its library."""
    model, x = torch.nn.Linear(64, 64).eval(), torch.randn(16, 64)
    _store(model, x, lambda _: fallback.trace(workloads.softmax(6, 40)))
    with torch.no_grad():
        _agree(_compiled(model)(x), model(x))
    *_, warning, last = _messages(lines)
    assert warning.startswith("torch.compile: the fallback schedule is used instead: the schedule of ")
    assert last.startswith("compiled a graph with 0 of ")


def _store(model: Any, x: Any, trace_of: Callable[[str], str]) -> None:
    """Store a measured schedule for the only task of a model, made of its workload by `trace_of`."""
    from core.measurement import Outcome
    from records.jobs import tasks
    from records.schedules.schedules import Record
    from records.storage.database import Database
    from tunefarm.embedded.folder import DataFolder
    from tunefarm.settings import load

    device = detect_device(load().threads)
    exported = _exported(model, x)
    [task] = [task for task in _tasks(exported, device.target) if not task.variant]
    folder = DataFolder(load().data)
    folder.path.mkdir(parents=True)
    database = Database(folder.database_url)
    database.migrate()
    with database.begin() as session:
        make_job(session, "job", device)
        tasks.put_workload(session, task.workload_hash, task.module_json)
        record = Record(
            task.workload_hash,
            device.key,
            trace_of(task.module_json),
            None,
            1e-5,
            (1e-5,),
            Outcome.OK,
            device.target,
            "trial",
            5.0,
        )
        put_measured(session, record)


def _exported(model: Any, x: Any) -> Any:
    found = []

    def keep(captured: Any, examples: Any) -> Any:
        found.append(exported_graph.export(captured, examples, exported_graph.Weights(examples)))
        return captured.forward

    with torch.no_grad():
        torch.compile(model, backend=keep)(x)
    torch._dynamo.reset()
    return found[0]


def _tasks(exported: Any, target: str) -> Any:
    from compiler.importing.formats import exported_program
    from compiler.variants.choice import VariantModel

    return VariantModel.of(exported_program.of_program(exported.program).to_relax(), target).tasks()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"trial": 3}, "no option 'trial'"),
        ({"trials": 0}, "between 1 and"),
        ({"trials": True}, "between 1 and"),
        ({"trials": float("nan")}, "between 1 and"),
        ({"trials": 2**63}, "between 1 and"),
        ({"background": 1}, "True or False"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(Exception, match=says):
        _compiled(torch.relu, **options)(torch.zeros(2))


def test_without_a_service_nothing_is_tuned_in_the_background(lines: pytest.LogCaptureFixture) -> None:
    x = torch.randn(4, 8)
    with torch.no_grad():
        _agree(_compiled(torch.relu, background=True)(x), torch.relu(x))
    for thread in [one for one in threading.enumerate() if one.name == "tunefarm"]:
        thread.join()
    assert any("no service is running here: set TUNEFARM_SERVER" in line for line in _messages(lines))


@pytest.mark.parametrize(
    ("other", "says"), [(torch.relu, "computes something else"), (torch.add, "the library fails")]
)
def test_a_service_that_sends_another_library_changes_nothing(
    other: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        libraries, "tune_in_background", lambda exported, _, swap: asked.append((exported, swap))
    )
    x = torch.randn(4, 8)
    inputs = (x, torch.randn(4, 8)) if other is torch.add else (x,)
    with torch.no_grad():
        compiled = _compiled(torch.neg, background=True)
        compiled(x)
        _compiled(other, background=True)(*inputs)
        [(_, swap), (exported, _)] = asked
        with pytest.raises(exported_graph.CannotCompile, match=says):
            swap(libraries.compile_with_known(exported))
        _agree(compiled(x), torch.neg(x))


def _small() -> Any:
    layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32), torch.nn.Softmax(-1)
    return torch.nn.Sequential(*layers).eval()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_graph_is_tuned_on_devices_like_this_machine(
    is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service has boards too, whose libraries don't run here."""
    own, asked = detect_device(None).key, []

    def refuse(*_: Any, target: str, **__: Any) -> None:
        asked.append(target)
        raise CommandError("not here", ExitCode.REFUSED)

    monkeypatch.setattr(libraries, "tune", refuse)
    monkeypatch.setattr(libraries, "_known", lambda *_: {})
    keys = ["board", own] if is_known else ["board"]
    monkeypatch.setattr(Client, "device_classes", lambda _: [SimpleNamespace(key=key) for key in keys])
    monkeypatch.setenv("TUNEFARM_SERVER", "http://127.0.0.1:1")
    with torch.no_grad():
        _compiled(torch.relu, trials=4)(torch.randn(4, 8))
    assert asked == [own if is_known else "native"]


@pytest.mark.slow_lane
def test_trials_are_spent_before_the_first_call(lines: pytest.LogCaptureFixture) -> None:
    model, x = _small(), torch.randn(16, 64)
    with torch.no_grad():
        _agree(_compiled(model, trials=4)(x), model(x))
    assert "runs in PyTorch" not in lines.text


@pytest.mark.slow_lane
def test_a_better_library_is_swapped_in_while_the_program_runs(
    lines: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = _small(), torch.randn(16, 64)
    with stack.start(stack.StackConfig(tmp_path / "service", lasting=True)) as started:
        monkeypatch.setenv("TUNEFARM_SERVER", started.running.url)
        compiled = _compiled(model, background=True, trials=4)
        with torch.no_grad():
            _agree(compiled(x), model(x))
            assert "with 0 of" in lines.text
            for thread in [one for one in threading.enumerate() if one.name == "tunefarm"]:
                thread.join(300)
            assert "the program uses its library from now on" in lines.text
            _agree(compiled(x), model(x))

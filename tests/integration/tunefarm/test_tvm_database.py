"""TVM's own passes find the service's schedules, and schedules are exported and imported as TVM's files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.tirx import PrimFunc

from compiler.workload import normalise, to_json, workload_hash
from tests.integration.tunefarm.products import TARGET, TRACE, matmul
from tests.traces import calling
from tests.unit.tunefarm.answering import BROKEN, Reply, Request, answering, json_reply
from tunefarm.client import metaschedule_files
from tunefarm.client.client import Client, ProblemError, UnreachableError
from tunefarm.client.schedule_cache import ScheduleCache
from tunefarm.client.values import ExportedRecord, ExportedWorkload, Schedule, ScheduleDatabase
from tunefarm.errors import InputError
from tunefarm.tvm_database import build, service_database


def network() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in SHAPES)
    with builder.function("main", [x, w]):
        function = builder.add_func(matmul().without_attr("global_symbol"), "matmul")
        out = relax.TensorType((32, 8), "float32")
        builder.emit_func_output(builder.emit(relax.call_tir(function, [x, w], out)))
    return builder.get()


SHAPES = (("x", (32, 16)), ("w", (16, 8)))


class Service:
    """A service that knows one workload and records requests. It can be unavailable, or reject them."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.is_away = False
        self.known = workload_hash(normalise(matmul()))
        self.source = "trial"
        self.trace = TRACE
        self.status = 200
        self.url = ""

    def __call__(self, request: Request) -> Reply:
        if self.is_away:
            return BROKEN
        if self.status != 200:
            return json_reply({"title": "No schedule"}, self.status)
        workloads = json.loads(request.content)["workloads"]
        self.asked.append(workloads)
        if request.headers.get("If-None-Match") == '"tag"':
            return Reply(304)
        best = asdict(Schedule(self.known, "cafe", self.trace, 1e-3, (1e-3,), TARGET, self.source))
        found = {name: best if name == self.known else None for name in workloads}
        return json_reply({"schedules": found}, headers={"ETag": '"tag"'})

    def cache(self, folder: Path) -> ScheduleCache:
        return ScheduleCache(Client(self.url, sleep=lambda _: None), folder=folder)


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    with answering(made) as made.url:
        yield made


def loops(mod: tvm.IRModule, name: str) -> int:
    schedule = tvm.s_tir.Schedule(mod)
    schedule.work_on(name)
    return len(schedule.get_loops(schedule.get_sblock("C")))


def compiled(cache: ScheduleCache) -> tvm.IRModule:
    mod = network()
    assert loops(mod, "matmul") == 3
    with tvm.target.Target(TARGET), service_database(cache, mod):
        return relax.transform.MetaScheduleApplyDatabase()(mod)


def test_a_pass_compiles_with_the_service_s_schedule_even_while_the_service_is_away(
    service: Service, tmp_path: Path
) -> None:
    assert loops(compiled(service.cache(tmp_path)), "matmul") == 4
    assert loops(compiled(service.cache(tmp_path)), "matmul") == 4, "304"
    assert service.asked == [[service.known], [service.known]], "one call for a module"
    service.is_away = True
    assert loops(compiled(service.cache(tmp_path)), "matmul") == 4
    with pytest.raises(UnreachableError, match="closed connection without response"):
        compiled(service.cache(tmp_path / "empty"))


def test_the_example_of_the_documents_runs_and_says_how_many_functions_have_a_schedule(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "tvm.md").read_text()
    example = page.split("```python\n")[1].split("```")[0]
    assert "http://tuner:8760" in example
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    named = relax.transform.AttachAttrLayoutFreeBuffers()(network())
    [(name, function)] = [pair for pair in named.functions_items() if isinstance(pair[1], PrimFunc)]
    service.known = workload_hash(normalise(function))
    names: dict[str, Any] = {"module": network(), "target": TARGET}
    exec(example.replace("http://tuner:8760", service.url), names)
    assert capsys.readouterr().out == "1 functions have a schedule\n"
    assert isinstance(names["executable"], relax.VMExecutable)
    assert loops(names["module"], name.name_hint) == 4


def test_a_workload_without_a_schedule_is_unchanged(service: Service, tmp_path: Path) -> None:
    service.known = "another"
    database = service_database(service.cache(tmp_path), network())
    mod = normalise(matmul())
    assert not database.has_workload(mod)
    assert database.query_schedule(mod, tvm.target.Target(TARGET), "main") is None
    assert len(database) == 0


def test_an_unmeasured_schedule_is_not_compiled_in(service: Service, tmp_path: Path) -> None:
    service.source = "import"
    database = service_database(service.cache(tmp_path), network())
    assert not database.has_workload(normalise(matmul()))


def test_a_schedule_that_calls_a_function_is_not_handed_to_tvm(service: Service, tmp_path: Path) -> None:
    service.trace = calling("system")
    mod = normalise(matmul())
    database = service_database(service.cache(tmp_path), network())
    with pytest.raises(Exception, match="an index map has no escaped characters"):
        database.query_schedule(mod, tvm.target.Target(TARGET), "main")


def test_a_refusal_is_an_error_and_not_a_missing_schedule(service: Service, tmp_path: Path) -> None:
    service.status = 401
    with pytest.raises(ProblemError, match="No schedule"):
        service_database(service.cache(tmp_path), network())


def test_a_module_is_built_with_the_passes_that_its_schedules_were_measured_with() -> None:
    x = te.placeholder((64, 16), name="x")
    function = te.create_prim_func([x, te.compute(x.shape, lambda i, j: te.exp(x[i, j]), name="C")])
    schedule = tvm.s_tir.Schedule(function.with_attr("tirx.is_scheduled", True))
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("C"))[-1])
    builder = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType((64, 16), "float32"))
    with builder.function("main", [given]):
        exponential = builder.add_func(schedule.mod["main"].without_attr("global_symbol"), "exponential")
        called = relax.call_tir(exponential, [given], relax.TensorType((64, 16), "float32"))
        builder.emit_func_output(builder.emit(called))
    target = json.dumps({"kind": "llvm"})
    import_with_tvm = relax.build(builder.get(), tvm.target.Target({"kind": "llvm"}))
    built = build(builder.get(), target)
    assert "@llvm.exp" in import_with_tvm.mod.imports[0].inspect_source("ll"), "one call for each element"
    assert "@llvm.exp" not in built.mod.imports[0].inspect_source("ll")
    values = np.random.default_rng(0).standard_normal((64, 16)).astype("float32")
    found = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(values))
    np.testing.assert_allclose(found.numpy(), np.exp(values), rtol=1e-6)


def exported() -> ScheduleDatabase:
    mod = normalise(matmul())
    name = workload_hash(mod)
    record = ExportedRecord(name, TRACE, (1e-3, 2e-3), TARGET)
    return ScheduleDatabase((ExportedWorkload(name, to_json(mod)),), (record,))


def test_files_written_are_read_back(tmp_path: Path) -> None:
    written = metaschedule_files.write(exported(), tmp_path)
    assert (written.workloads, written.records) == (1, 1)
    read = metaschedule_files.read(tmp_path)
    assert read.workloads == exported().workloads
    (record,) = read.records
    assert json.loads(record.trace) == json.loads(TRACE)
    assert np.allclose(record.run_s, (1e-3, 2e-3))


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        (metaschedule_files.RECORD_FILE, b"[0, ", "database_tuning_record.json, line 1"),
        (metaschedule_files.WORKLOAD_FILE, b'["1", "!"]', "database_workload.json, line 1"),
        (metaschedule_files.WORKLOAD_FILE, b"\xff\xfe", "no text"),
        (metaschedule_files.WORKLOAD_FILE, None, "can't be read"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: Any, cause: str) -> None:
    metaschedule_files.write(exported(), tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=cause):
        metaschedule_files.read(tmp_path)

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.database import JSONDatabase, TuningRecord
from tvm.s_tir.schedule import Trace

from compiler.packaging.metaschedule import (
    DatabaseFormatError,
    ImportedRecord,
    export_database,
    import_database,
)
from compiler.workload import normalise, to_json, workload_hash
from tests import workloads
from tests.traces import calling

TARGET = '{"kind":"llvm","mcpu":"skylake","mtriple":"x86_64-linux-gnu","num-cores":2}'


@dataclass(frozen=True)
class _Stored:
    workload_hash: str
    trace: str
    run_s: tuple[float, ...]
    target: str = TARGET


def _workload(size: int = 16) -> tvm.IRModule:
    return normalise(workloads.matmul(size, size, size)["main"])


def _trace(factor: int) -> str:
    """Splits the outer loop of a 16x16x16 matmul and runs it in parallel."""
    instructions = [
        ["GetSBlock", [], ["T_matmul", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
        ["Split", ["l1", 16 // factor, factor], [True, False], ["l4", "l5"]],
        ["Parallel", ["l4"], [], []],
    ]
    return json.dumps([instructions, []], separators=(",", ":"))


def _scheduled(mod: tvm.IRModule, trace: str) -> Schedule:
    schedule = Schedule(mod)
    Trace.apply_json_to_schedule(json.loads(trace), schedule)
    return schedule


def _open(folder: Path, texts: tuple[str, str]) -> JSONDatabase:
    for name, text in zip(("w.json", "r.json"), texts, strict=True):
        (folder / name).write_text(text)
    return JSONDatabase(str(folder / "w.json"), str(folder / "r.json"), allow_missing=False)


def _import(workload_text: str, record_text: str) -> list[ImportedRecord]:
    return list(import_database(workload_text, record_text))


def test_tvm_reads_what_we_write_and_finds_the_fastest(tmp_path: Path) -> None:
    mod, other = _workload(), _workload(32)
    name = workload_hash(mod)
    records = [
        _Stored(name, _trace(2), (0.5, 0.6)),
        _Stored(name, _trace(4), (0.1,)),
        _Stored(name, _trace(8), (0.3,)),
    ]
    workload_texts = {workload_hash(other): to_json(other), name: to_json(mod)}
    database = _open(tmp_path, export_database(records, workload_texts))
    assert len(database) == 3
    assert database.has_workload(mod)
    assert not database.has_workload(other)
    found = database.query_ir_module(mod, tvm.target.Target(json.loads(TARGET)), "main")
    tvm.ir.assert_structural_equal(found, _scheduled(mod, _trace(4)).mod)


def test_exported_records_come_back_as_they_were() -> None:
    mod = _workload()
    stored = [_Stored(workload_hash(mod), _trace(factor), (factor * 1e-3, 1e-5)) for factor in (2, 4)]
    texts = export_database(stored, {workload_hash(mod): to_json(mod)})
    assert _import(*texts) == [
        ImportedRecord(r.workload_hash, to_json(mod), r.trace, r.run_s, r.target) for r in stored
    ]


def test_nothing_exports_to_empty_files() -> None:
    assert export_database([], {}) == ("", "")
    assert _import("", "\n") == []


def test_a_record_without_its_workload_is_not_exported() -> None:
    with pytest.raises(KeyError):
        export_database([_Stored("1", _trace(2), (0.1,))], {})


def _written_by_tvm(folder: Path, run_s: list[float] | None) -> tuple[str, str]:
    database = JSONDatabase(str(folder / "w.json"), str(folder / "r.json"))
    mod = _workload()
    trace = _scheduled(mod, _trace(4)).trace
    target = tvm.target.Target(json.loads(TARGET))
    arguments = ArgInfo.from_prim_func(mod["main"])
    workload = database.commit_workload(mod)
    database.commit_tuning_record(TuningRecord(trace, workload, run_s, target, arguments))
    return (folder / "w.json").read_text(), (folder / "r.json").read_text()


def test_we_read_what_tvm_writes(tmp_path: Path) -> None:
    (record,) = _import(*_written_by_tvm(tmp_path, [0.25, 0.5]))
    mod = _workload()
    assert (record.workload_hash, record.run_s) == (workload_hash(mod), (0.25, 0.5))
    assert json.loads(record.target)["mcpu"] == "skylake"
    tvm.ir.assert_structural_equal(_scheduled(mod, record.trace).mod, _scheduled(mod, _trace(4)).mod)


def test_an_export_has_the_arguments_that_tvm_writes(tmp_path: Path) -> None:
    mod = _workload()
    record = _Stored(workload_hash(mod), _trace(4), (0.25,))
    _, ours = export_database([record], {record.workload_hash: to_json(mod)})
    _, theirs = _written_by_tvm(tmp_path, [0.25])
    assert json.loads(ours)[1][3] == json.loads(theirs)[1][3]


@pytest.mark.parametrize("run_s", [None, [1e10], [0.1, 1e10]])
def test_candidates_that_failed_are_left_out(tmp_path: Path, run_s: list[float] | None) -> None:
    assert _import(*_written_by_tvm(tmp_path, run_s)) == []


def test_a_hash_of_another_version_is_computed_anew(tmp_path: Path) -> None:
    workload_text, record_text = _written_by_tvm(tmp_path, [0.1])
    _, encoded = json.loads(workload_text)
    (record,) = _import(json.dumps(["123", encoded]), record_text)
    assert record.workload_hash == workload_hash(_workload())


def _encoded(data: bytes) -> str:
    return json.dumps(["1", base64.b64encode(data).decode()])


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        "[1, 2]",
        '["1"]',
        '["1", "not base64!"]',
        _encoded(b""),
        _encoded(bytes(8) + b"\xff"),
        _encoded(bytes(8) + b"{}"),
        "[" * 100_000,
    ],
)
def test_a_bad_workload_names_its_file_and_line(tmp_path: Path, line: str) -> None:
    workload_text, record_text = _written_by_tvm(tmp_path, [0.1])
    with pytest.raises(DatabaseFormatError, match=r"^database_workload\.json, line 2: "):
        _import(workload_text + line + "\n", record_text)


def _record(**change: Any) -> str:
    fields = {"index": 0, "trace": [[], []], "secs": [0.1], "target": {"kind": "llvm"}} | change
    return json.dumps([fields["index"], [fields["trace"], fields["secs"], fields["target"], []]])


@pytest.mark.parametrize(
    "line",
    [
        "[0",
        "7",
        "[0]",
        "[0, 5]",
        _record(index=1),
        _record(index=-1),
        _record(index="0"),
        _record(trace=[]),
        _record(trace="x"),
        _record(secs=0.1),
        _record(secs=["a"]),
        _record(secs=[True]),
        _record(secs=[0]),
        _record(secs=[-1.0]),
        _record(secs=[float("nan")]),
        _record(target=None),
        _record(target={"kind": "llvm", "cl-opt": ["-load=/tmp/a.so"]}),
        _record(trace=json.loads(calling("system"))),
        _record(trace=[[["Annotate", ["b0", '"code"'], ["pragma_import_c"], []]], []]),
    ],
)
def test_a_bad_record_names_its_file_and_line(tmp_path: Path, line: str) -> None:
    workload_text, record_text = _written_by_tvm(tmp_path, [0.1])
    with pytest.raises(DatabaseFormatError, match=r"^database_tuning_record\.json, line 2: "):
        _import(workload_text, record_text + line + "\n")


def test_traces_with_code_are_not_exported() -> None:
    """Other TVM programs read the files, so a compromised service or cache must not attack them."""
    mod = _workload()
    name = workload_hash(mod)
    for stored in (
        _Stored(name, calling("system"), (0.5,)),
        _Stored(name, _trace(2), (0.5,), '{"kind":"llvm","cl-opt":["-load=/tmp/a.so"]}'),
    ):
        with pytest.raises(ValueError, match=r"escaped|cl-opt"):
            export_database([stored], {name: to_json(mod)})
    calls = mod["main"].with_body(tvm.tirx.Evaluate(tvm.tirx.call_extern("int32", "system", "true")))
    with pytest.raises(ValueError, match="only computes"):
        export_database([_Stored(name, _trace(2), (0.5,))], {name: to_json(tvm.IRModule({"main": calls}))})


def test_a_huge_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.packaging.metaschedule.MAX_FILE_CHARS", 10)
    with pytest.raises(DatabaseFormatError, match="more than 10 characters"):
        _import("[" * 11, "")

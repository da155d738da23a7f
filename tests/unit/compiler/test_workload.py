import json
from collections.abc import Callable

import pytest
import tvm
from tvm import te
from tvm.s_tir import meta_schedule
from tvm.tirx import PrimFunc

from compiler.workload import from_json, normalise, to_json, workload_hash


def _add_one(size: int = 4) -> PrimFunc:
    data = te.placeholder((size, size), name="data")
    return te.create_prim_func([data, te.compute((size, size), lambda i, j: data[i, j] + 1.0)])


@pytest.mark.parametrize(
    "change",
    [
        lambda func: func,
        lambda func: func.without_attr("global_symbol"),
        lambda func: func.with_attr("global_symbol", "elsewhere"),
        lambda func: (
            func.without_attr("global_symbol").without_attr("tirx.noalias").with_attr("op_pattern", 4)
        ),
    ],
)
def test_workload_hashes_equal_metaschedules(change: Callable[[PrimFunc], PrimFunc]) -> None:
    func = change(_add_one())
    theirs = tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")(func)
    stored, _ = meta_schedule.database.Workload(theirs).as_json()
    assert workload_hash(normalise(func)) == stored


def test_different_shapes_are_different_workloads() -> None:
    assert workload_hash(normalise(_add_one(4))) != workload_hash(normalise(_add_one(5)))


def test_a_workload_survives_its_text() -> None:
    mod = normalise(_add_one())
    again = from_json(to_json(mod))
    tvm.ir.assert_structural_equal(again, mod)
    assert workload_hash(again) == workload_hash(mod)


def _with_main_renamed() -> str:
    return to_json(tvm.IRModule({"other": _add_one()}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a TVM module"),
        ("null", "no list of nodes"),
        ("[]", "no list of nodes"),
        ("[" * 100_000, "not a TVM module"),
        ('{"nodes": 3}', "no list of nodes"),
        ('{"nodes": [4], "root_index": 0}', "no list of nodes"),
        ('{"nodes": [], "root_index": 0}', "names none of the nodes"),
        ('{"nodes": [{"type": "None"}], "root_index": -1}', "names none of the nodes"),
        ('{"nodes": [{"type": "None"}], "root_index": 0}', "holds a NoneType"),
        ('{"nodes": [{"type": "no.such"}], "root_index": 0}', "has the object 'no.such'"),
        (to_json(normalise(_add_one()))[:500], "not a TVM module"),
        (to_json(_add_one()), "holds a PrimFunc"),
        (_with_main_renamed(), "one PrimFunc called main"),
    ],
)
def test_anything_else_is_a_value_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_json(text)


def test_an_unknown_node_type_is_a_value_error() -> None:
    graph = json.loads(to_json(normalise(_add_one())))
    graph["nodes"][graph["root_index"]]["type"] = "ir.NoSuchThing"
    with pytest.raises(ValueError, match=r"has the object 'ir\.NoSuchThing'"):
        from_json(json.dumps(graph))


def test_a_huge_text_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.workload.MAX_TEXT_BYTES", 10)
    with pytest.raises(ValueError, match="larger than the limit"):
        from_json(to_json(normalise(_add_one())))

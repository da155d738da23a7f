"""Send a running service mutated real traces of every kind, and texts that aren't traces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from compiler.children.traces import check_traces
from compiler.lowering.trace import replay, trace_of
from compiler.workload import to_json
from core.trace import INSTRUCTIONS, MAX_INTEGER, STORAGE_SCOPES, TraceRefused, parse_trace, write_trace
from records.storage.tables import RecordRow
from tests.schedules_of_every_kind import SCHEDULES
from tests.traces import NODES, calling, index_map

from .conftest import Service, Worker, launch

TARGET = '{"kind":"llvm","num-cores":1}'
TRACES = {name: trace_of(scheduled.schedule()) for name, scheduled in SCHEDULES.items()}
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.e+-]*|[\[\]{},:]|\w+')
# Replacements for tokens.
STRANGE = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "-0", "1.0", "9" * 5000, "1" * 400, "2147483648"),
    *(
        "-2147483649",
        "18446744073709551616",
        "null",
        "true",
        '""',
        '"\\ud800"',
        '"\\udc00\\ud800"',
        '"\\u0000"',
    ),
    *('"None"', '"b0"', '"l1"', '"v2"', '"system"', '"pragma_import_llvm"', '"\\u0062\\u0030"', "{}", "[]"),
    *('{"a":1,"a":2}', "[" * 2000, "[" * 20 + "]" * 20, "'b0'", "/**/", "\\", "\x7f", "\u2028", "\ufeff"),
    *(json.dumps(index_map(NODES)), json.dumps(index_map(NODES, root=10**30)), calling("system")),
    json.dumps(json.loads(calling("system"))[0][1][1][1]),
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service, stop = launch(tmp_path_factory.mktemp("service"))
    Worker(service.fleet).call()
    yield service
    stop()


@st.composite
def changed_traces(draw: st.DrawFn) -> str:
    """Return a real trace with a few tokens replaced, removed or repeated."""
    text = TRACES[draw(st.sampled_from(sorted(TRACES)))]
    for _ in range(draw(st.integers(1, 3))):
        tokens = list(TOKEN.finditer(text))
        one = draw(st.sampled_from(tokens))
        others = [other[0] for other in tokens]
        new = draw(
            st.one_of(st.sampled_from(STRANGE), st.sampled_from(others), st.just(""), st.just(2 * one[0]))
        )
        text = text[: one.start()] + new + text[one.end() :]
    return text


def test_real_schedules_have_every_kind_of_instruction() -> None:
    kinds = {instruction[0] for trace in TRACES.values() for instruction in json.loads(trace)[0]}
    assert kinds == INSTRUCTIONS.keys()


@pytest.mark.parametrize("name", TRACES)
def test_a_real_trace_comes_back_and_replays(name: str) -> None:
    scheduled, trace = SCHEDULES[name], TRACES[name]
    assert write_trace(parse_trace(trace)) == trace
    assert tvm_ffi.structural_equal(replay(scheduled.make(), trace).mod, scheduled.schedule().mod)


def imported(service: Service, trace: str) -> Any:
    body = {
        "workloads": [{"hash": "abc", "module_json": "{}"}],
        "records": [{"workload": "abc", "trace": trace, "run_s": [1e-3], "target": TARGET}],
    }
    return service.http.post("/v1/schedules/import", json=body)


@settings(max_examples=300)
@given(changed_traces())
def test_a_changed_trace_is_refused_or_stored_as_the_schema_writes_it(service: Service, trace: str) -> None:
    answer = imported(service, trace)
    if answer.status_code == 422:
        assert answer.headers["content-type"] == "application/problem+json"
        assert 0 < len(answer.json()["detail"]) < 1000
        return
    assert answer.status_code == 200, answer.text
    rewritten = write_trace(parse_trace(trace))
    with service.database.begin() as session:
        stored = session.scalars(select(RecordRow.trace)).all()
    assert rewritten in stored
    assert not any(word in rewritten for word in ("call_extern", "import_llvm", "\\u", "NaN"))


NUMBERS = (0, 1, -1, 7, 1 << 20, MAX_INTEGER, -MAX_INTEGER - 1, True, "None")


def _nonsense(trace: str, random: Random) -> str:
    """Return a trace with a few numbers, blocks, loops or variables replaced, which the schema allows."""
    while True:
        steps = json.loads(trace)
        for _ in range(random.randint(1, 2)):
            _, inputs, attributes, _ = random.choice(steps[0])
            place = random.choice([part for part in (inputs, attributes) if part] or [[None]])
            names = [name for step in steps[0] for name in step[3]]
            at = random.randrange(len(place))
            place[at] = random.choice([*NUMBERS, *names, *STORAGE_SCOPES])
        try:
            changed = write_trace(parse_trace(json.dumps(steps)))
        except TraceRefused:
            continue
        if changed != trace:
            return changed


@pytest.mark.slow_lane
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TRACES)
def test_an_accepted_trace_kills_at_most_a_child(name: str) -> None:
    """TVM gets numbers, blocks and loops that are well-formed but meaningless."""
    random, workload = Random(name), to_json(SCHEDULES[name].make())
    changed = [_nonsense(TRACES[name], random) for _ in range(4)]
    problems = check_traces([(workload, one) for one in [TRACES[name], *changed]], TARGET)
    assert len(problems) == 5
    assert "adds what no schedule needs" not in " ".join(problems)

"""Schedules over HTTP: best ones, export and import."""

from __future__ import annotations

import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, event, update

from records import devices
from records.storage.tables import RecordRow
from server.api import schedules as api
from tests.traces import NODES, calling, index_map, trace, transformed

from .conftest import Service, Start, Worker

LATENCIES = (3e-3, 2e-3, 1e-3, 5e-4)


def trace_of(number: int) -> str:
    """Return a trace that does nothing and differs from those of other numbers."""
    return trace(["GetSBlock", [], [f"block {number}", "main"], ["b0"]])


def database(*latencies: float, workload: str = "abc") -> dict[str, Any]:
    records = [
        {"workload": workload, "trace": trace_of(n), "run_s": [secs], "target": '{"kind":"llvm"}'}
        for n, secs in enumerate(latencies)
    ]
    return {"workloads": [{"hash": workload, "module_json": '{"root":1}'}], "records": records}


@pytest.fixture
def ready(service: Service, worker: Worker) -> Service:
    """A service that knows one device class."""
    worker.call()
    return service


def import_measured(service: Service, body: dict[str, Any]) -> None:
    """Import schedules, and have devices measure the same times."""
    assert service.http.post("/v1/schedules/import", json=body).is_success
    with service.database.begin() as session:
        session.execute(update(RecordRow).values(source="trial"))


def known(service: Service, *workloads: str) -> dict[str, Any]:
    answer = service.http.post("/v1/schedules:query", json={"workloads": workloads or ("abc",)})
    found: dict[str, Any] = answer.json()["schedules"]
    return found


def test_a_trace_that_calls_a_function_is_refused(ready: Service) -> None:
    """Loading a library that was built with it would run a command."""
    body = database(1e-3)
    body["records"][0]["trace"] = calling("system")
    answer = ready.http.post("/v1/schedules/import", json=body)
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (422, "trace-refused")
    assert "an index map has no escaped characters" in answer.json()["detail"]
    assert ready.http.get("/v1/schedules/best", params={"workload": "abc"}).status_code == 404


def test_an_imported_trace_is_written_anew(ready: Service) -> None:
    body = database(1e-3)
    plain = transformed(index_map(NODES))
    body["records"][0]["trace"] = " " + json.dumps(json.loads(plain), indent=3)
    assert ready.http.post("/v1/schedules/import", json=body).is_success
    assert known(ready)["abc"]["trace"] == plain


def test_an_export_can_be_imported(ready: Service) -> None:
    body = database(3e-3, 1e-3, 2e-3)
    answer = ready.http.post("/v1/schedules/import", json=body).json()
    assert (answer["records"], answer["added"]) == (3, 3)
    assert ready.http.post("/v1/schedules/import", json=body).json()["added"] == 0
    assert ready.http.get("/v1/schedules/export").json() == {"workloads": [], "records": []}, "none measured"
    import_measured(ready, body)
    exported = ready.http.get("/v1/schedules/export").json()
    assert exported["workloads"] == body["workloads"]
    fastest_first = sorted(body["records"], key=lambda record: record["run_s"])
    assert exported["records"] == fastest_first


def test_a_schedule_that_carries_code_is_refused_and_nothing_is_stored(ready: Service) -> None:
    body = database(3e-3, 1e-3)
    code = ["Annotate", ["l1", '"define void @x() { ret void }"'], ["pragma_import_llvm"], []]
    body["records"][1]["trace"] = json.dumps([[code], []])
    answer = ready.http.post("/v1/schedules/import", json=body)
    assert answer.status_code == 422
    assert answer.json()["type"].endswith("trace-refused")
    assert "pragma_import_llvm" in answer.json()["detail"]
    assert known(ready) == {"abc": None}


def test_many_workloads_are_exported(ready: Service) -> None:
    parts = [database(1e-3, workload=f"w{number}") for number in range(60)]
    body = {key: [one for part in parts for one in part[key]] for key in ("workloads", "records")}
    import_measured(ready, body)
    exported = ready.http.get("/v1/schedules/export").json()
    assert {one["hash"] for one in exported["workloads"]} == {f"w{number}" for number in range(60)}
    assert len(exported["records"]) == 60


def test_nothing_is_exported_of_a_class_without_schedules(ready: Service) -> None:
    assert ready.http.get("/v1/schedules/export").json() == {"workloads": [], "records": []}


def test_a_job_without_a_device_is_not_exported_yet(ready: Service) -> None:
    answer = ready.http.get("/v1/schedules/export", params={"job": ready.submit()})
    assert (answer.status_code, answer.json()["title"]) == (409, "Job not started")


def test_the_best_schedule_is_the_fastest(ready: Service, worker: Worker) -> None:
    import_measured(ready, database(3e-3, 1e-3))
    for target in ("native", worker.device.key, worker.device.name):
        best = ready.http.get("/v1/schedules/best", params={"workload": "abc", "target": target}).json()
        assert (best["trace"], best["latency_s"], best["source"]) == (trace_of(1), 1e-3, "trial")
    query = {"workloads": ["abc", "other"]}
    answer = ready.http.post("/v1/schedules:query", json=query).json()
    assert answer == {"device_class": worker.device.key, "schedules": {"abc": best, "other": None}}


def test_a_current_etag_gets_304_until_a_better_schedule_is_stored(ready: Service) -> None:
    import_measured(ready, database(*LATENCIES[:2]))
    one: dict[str, Any] = {"method": "GET", "url": "/v1/schedules/best?workload=abc"}
    many: dict[str, Any] = {
        "method": "POST",
        "url": "/v1/schedules:query",
        "json": {"workloads": ["abc", "other"]},
    }
    for request in (one, many):
        first = ready.http.request(**request)
        tag = first.headers["etag"]
        for header in (tag, f'"other", W/{tag}', "*"):
            again = ready.http.request(**request, headers={"If-None-Match": header})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert ready.http.request(**request, headers={"If-None-Match": '"other"'}).content == first.content
        import_measured(ready, database(*LATENCIES[: 3 if request is one else 4]))
        better = ready.http.request(**request, headers={"If-None-Match": tag})
        assert (better.status_code, better.headers["etag"] != tag) == (200, True)


def test_only_304_responses_may_be_stale(
    ready: Service, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MAX_ETAG_AGE_S", 3600.0)
    import_measured(ready, database(*LATENCIES[:2]))
    url = f"/v1/schedules/best?workload=abc&target={worker.device.key}"
    tags = {ready.http.get(url).headers["etag"] for _ in range(2)}
    (tag,) = tags
    import_measured(ready, database(*LATENCIES[:3]))
    assert ready.http.get(url, headers={"If-None-Match": tag}).status_code == 304
    assert ready.http.get(url).headers["etag"] != tag
    assert ready.http.get(url, headers={"If-None-Match": tag}).status_code == 200
    import_measured(ready, database(*LATENCIES[:4]))
    monkeypatch.setattr(api, "MAX_ETAG_AGE_S", 0.0)
    for _ in range(2):
        newest = ready.http.get(url, headers={"If-None-Match": tag})
        tag = newest.headers["etag"]
    assert newest.status_code == 304


def test_look_ups_return_the_spread_and_the_device_class(ready: Service, worker: Worker) -> None:
    body = database(1e-3)
    body["records"][0]["run_s"] = [1e-3] * 9 + [2e-3] * 2
    import_measured(ready, body)
    best = known(ready)["abc"]
    assert (best["noise"], best["threads"], best["toolchain"]) == (1.0, 2, worker.device.toolchain)
    assert (best["device_class"], best["in_place_of"]) == (worker.device.key, None)
    import_measured(ready, database(1e-3, workload="once"))
    assert known(ready, "once")["once"]["noise"] is None


def test_another_device_class_is_used_only_with_nearest(ready: Service, worker: Worker) -> None:
    import_measured(ready, database(1e-3))
    larger = replace(worker.device, name="larger board", cores=8)
    with ready.database.begin() as session:
        devices.put_class(session, larger)
    asked = {"workload": "abc", "target": "larger board"}
    assert ready.http.get("/v1/schedules/best", params=asked).status_code == 404
    best = ready.http.get("/v1/schedules/best", params=asked | {"nearest": True}).json()
    assert (best["device_class"], best["in_place_of"]) == (worker.device.key, larger.key)
    query = {"workloads": ["abc", "other"], "target": "larger board"}
    assert ready.http.post("/v1/schedules:query", json=query).json()["schedules"]["abc"] is None
    answer = ready.http.post("/v1/schedules:query", json=query | {"nearest": True}).json()
    assert answer["schedules"] == {"abc": best, "other": None}


def test_many_look_ups_at_once_are_each_answered(ready: Service) -> None:
    for number in range(4):
        import_measured(ready, database((1 + number) * 1e-3, workload=f"w{number}"))

    def ask(number: int) -> float | None:
        answer = ready.http.get("/v1/schedules/best", params={"workload": f"w{number % 5}"})
        return answer.json()["latency_s"] if answer.is_success else None

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(40))) == [1e-3, 2e-3, 3e-3, 4e-3, None] * 8


def test_an_unmeasured_schedule_is_marked_and_comes_last(ready: Service) -> None:
    foreign = database(1e-9, 2e-9, 1e-3)
    ready.http.post("/v1/schedules/import", json=foreign)
    best = ready.http.get("/v1/schedules/best", params={"workload": "abc"}).json()
    assert (best["latency_s"], best["source"]) == (1e-9, "import")
    with ready.database.begin() as session:
        measured = update(RecordRow).where(RecordRow.latency_s == 1e-3)
        session.execute(measured.values(source="trial", latency_s=5.0))
    best = ready.http.get("/v1/schedules/best", params={"workload": "abc"}).json()
    assert (best["trace"], best["latency_s"], best["source"]) == (trace_of(2), 5.0, "trial")
    assert known(ready)["abc"] == best
    assert len(ready.http.get("/v1/schedules/export").json()["records"]) == 1


def test_imported_schedules_can_be_deleted(ready: Service, worker: Worker) -> None:
    import_measured(ready, database(5.0, workload="w1"))
    for name in ("w2", "w3"):
        ready.http.post("/v1/schedules/import", json=database(1e-3, 2e-3, 3e-3, workload=name))
    forget = "/v1/schedules/imported"
    answer = ready.http.delete(forget, params={"workload": "w2"})
    assert answer.json() == {"device_class": worker.device.key, "deleted": 3}
    assert ready.http.delete(forget, params={"target": worker.device.name}).json()["deleted"] == 3
    assert ready.http.delete(forget).json()["deleted"] == 0
    found = known(ready, "w1", "w2", "w3")
    assert [name for name, best in found.items() if best] == ["w1"]
    assert ready.http.delete(forget, params={"target": "toaster"}).status_code == 422


def test_an_unknown_workload_has_no_schedule(ready: Service) -> None:
    answer = ready.http.get("/v1/schedules/best", params={"workload": "nope"})
    assert (answer.status_code, answer.json()["title"]) == (404, "No schedule")


def test_without_a_worker_nothing_is_native(start: Start) -> None:
    answer = start().http.get("/v1/schedules/best", params={"workload": "abc"})
    assert answer.status_code == 422
    assert "No worker is ready" in answer.json()["detail"]


def changed(field: str, value: object) -> dict[str, Any]:
    body = database(1e-3)
    part = "workloads" if field in body["workloads"][0] else "records"
    body[part][0][field] = value
    return body


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"workloads": [], "records": {}},
        changed("hash", "../x"),
        changed("module_json", "{"),
        changed("workload", "unheard-of"),
        changed("trace", "not JSON"),
        changed("trace", 5),
        changed("target", "llvm"),
        changed("run_s", []),
        changed("run_s", [0.0]),
        changed("run_s", [1e-300]),
        changed("run_s", [1e-3, 1e-10]),
        changed("run_s", [-1.0]),
        changed("run_s", ["1"]),
        changed("run_s", [1e-3] * 20_000),
        database(1e-3) | {"comment": "hi"},
    ],
)
def test_an_invalid_import_stores_nothing(ready: Service, body: dict[str, Any]) -> None:
    answer = ready.http.post("/v1/schedules/import", json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert known(ready) == {"abc": None}


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[" * 50_000, json.dumps(database(float("nan"))).encode()]
)
def test_a_body_that_is_no_import_is_refused(ready: Service, content: bytes) -> None:
    assert ready.http.post("/v1/schedules/import", content=content).status_code == 422


def test_records_that_are_repeated_are_stored_once(ready: Service) -> None:
    body = database(3e-3, 2e-3)
    body["records"] *= 20
    answer = ready.http.post("/v1/schedules/import", json=body).json()
    assert (answer["records"], answer["added"]) == (40, 2)


def test_a_large_import_holds_no_lock_for_long(ready: Service) -> None:
    """Other transactions begin between the slices of an import."""
    rows, of_transactions = [0], []

    def count(_c: Any, _cursor: Any, statement: str, _p: Any, context: Any, _many: bool) -> None:
        if statement.startswith("INSERT"):
            rows[0] += len(context.compiled_parameters)

    def note(_connection: Any) -> None:
        of_transactions.append(rows[0])
        rows[0] = 0

    event.listen(Engine, "after_cursor_execute", count)
    event.listen(Engine, "commit", note)
    body = database(*(1e-3 + n * 1e-6 for n in range(1000)))
    body["workloads"] += [{"hash": f"w{n}", "module_json": "{}"} for n in range(1000)]
    try:
        assert ready.http.post("/v1/schedules/import", json=body).json()["added"] == 1000
    finally:
        event.remove(Engine, "after_cursor_execute", count)
        event.remove(Engine, "commit", note)
    assert sum(of_transactions) >= 2000
    assert max(of_transactions) <= 300


@pytest.mark.parametrize("unit", ["{},", "[],", "1,", '"a",', "[[1],[2]],"])
@pytest.mark.parametrize(
    ("path", "begin", "end"),
    [
        ("/v1/schedules/import", '{"workloads":[],"records":[', "]}"),
        ("/v1/schedules/import", '{"workloads":[', '],"records":[]}'),
        ("/v1/jobs", '{"model":"", "others":[', "]}"),
        ("/v1/jobs", '{"model":"", "shapes":{"x":[', "]}}"),
        ("/v1/schedules:query", '{"workloads":[', "]}"),
        ("/v1/tokens", '{"name":"x","scopes":[', "]}"),
    ],
)
def test_a_flood_of_faults_is_refused_by_the_first(
    ready: Service, path: str, begin: str, end: str, unit: str
) -> None:
    """Each fault once had its own problem document of a kilobyte: 4 MiB of faults took 6 GiB and 88 s."""
    body = begin + (unit * 60_000).rstrip(",") + end
    tracemalloc.start()
    try:
        answer = ready.http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (413, 422), answer.text
        assert len(answer.content) < 4000
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/schedules:query", "/v1/tokens"])
def test_a_flood_of_unknown_fields_is_refused_by_the_first(ready: Service, path: str) -> None:
    body = json.dumps({f"f{number}": number for number in range(15_000)})
    answer = ready.http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert len(answer.content) < 1000


def test_an_import_needs_a_known_device_class(ready: Service) -> None:
    answer = ready.http.post("/v1/schedules/import?target=toaster", json=database(1e-3))
    assert answer.status_code == 422
    assert answer.json()["known"]

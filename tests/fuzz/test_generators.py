"""The fuzzer's parts: its generators, its checks of answers, its figures."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from pathlib import Path
from random import Random

import httpx
import onnx
import pytest
from google.protobuf.message import DecodeError

from benchmarks.results.figures import Figure
from benchmarks.simulated_workers import simulated_device
from proto import fleet_pb2 as pb
from tests.fuzz import fleet, imports, uploads, wire
from tests.fuzz.failures import KEPT_OF_A_KIND, Failures
from tests.fuzz.figures import FuzzResult, figures_of
from tests.fuzz.fleet_messages import METHODS, SYNCHRONIZE, Call, ServiceState, calls, valid
from tests.fuzz.models import DEFECTS, Defect, files
from tests.fuzz.mutations import CHANGES, FIELD_CHANGES, MAX_BYTES, Change, FieldChange, mutated
from tests.fuzz.service import Growth
from tests.fuzz.wire import Field
from tests.onnx_models import MODELS

FILE = MODELS["two_outputs"]()


def known() -> ServiceState:
    return ServiceState([simulated_device(0)], "workload", "0" * 64)


def test_fields_are_read_as_protobuf_writes_them() -> None:
    message = valid(SYNCHRONIZE, known(), Random(1))
    data = message.SerializeToString()
    fields = wire.read(data)
    numbers = list(dict.fromkeys(field.number for field in fields))
    assert numbers == [field.number for field, _ in message.ListFields()]
    assert wire.written(fields) == data


@pytest.mark.parametrize("data", [b"\x00", b"\xff" * 12, b"\x0a\x05abc", b"\x09\x01", b"\x0b", b"\x08"])
def test_data_that_is_no_message_has_no_fields(data: bytes) -> None:
    assert wire.read(data) == []


def test_numbers_are_written_as_protobuf_writes_them() -> None:
    for number in (0, 1, 127, 128, 300, 2**32, 2**64 - 1):
        field = pb.SynchronizeResponse(acknowledged=[number]).SerializeToString()
        assert field == Field(3, wire.BYTES, wire.varint(number)).encoded()


@pytest.mark.parametrize("change", dict.fromkeys(CHANGES), ids=lambda change: change.__name__)
@pytest.mark.parametrize("data", [b"", b"\x08", FILE, b"\xff" * 100])
def test_every_change_can_be_made_of_any_bytes(change: Change, data: bytes) -> None:
    rng = Random(2)
    changed = {change(data, FILE, rng) for _ in range(50)}
    assert changed != {data} or not data


@pytest.mark.parametrize("change", dict.fromkeys(FIELD_CHANGES), ids=lambda change: change.__name__)
def test_every_field_can_be_changed(change: FieldChange) -> None:
    rng = Random(3)
    for field in [Field(1, wire.VARINT, b"\x05"), Field(9, wire.BYTES, b"text"), Field(10, 1, bytes(8))]:
        assert any(change(field, rng) != field.encoded() for _ in range(20))


def test_changes_are_drawn_from_the_seed_and_bounded() -> None:
    first, again = ([mutated(FILE, FILE[::-1], rng) for _ in range(300)] for rng in (Random(4), Random(4)))
    assert first == again
    assert len(set(first)) > 250
    assert max(map(len, first)) <= MAX_BYTES


def test_calls_reach_every_method_and_are_drawn_from_the_seed() -> None:
    first, again = (list(itertools.islice(calls(known(), Random(5)), 400)) for _ in range(2))
    assert first == again
    assert {call.method for call in first} == set(METHODS)
    assert 100 < sum(map(_parses, first)) < 400


def _parses(call: Call) -> bool:
    try:
        getattr(pb, METHODS[call.method].input_type.name).FromString(call.data)
    except DecodeError:
        return False
    return True


def test_results_name_a_granted_lease() -> None:
    now = known()
    lease = pb.Lease(id=pb.LeaseId(id="lease-7", attempt=1), candidates=[pb.Candidate(trial_id=42)])
    request = pb.SynchronizeRequest(worker_id="w", session_id="s")
    now.learn(request.SerializeToString(), pb.SynchronizeResponse(lease=lease).SerializeToString())
    rng = Random(6)
    reports = [valid(SYNCHRONIZE, now, rng) for _ in range(50)]
    told = [report for report in reports if isinstance(report, pb.SynchronizeRequest) and report.results]
    assert told
    assert {(r.worker_id, r.session_id, r.held.id, r.results[0].trial_id) for r in told} == {
        ("w", "s", "lease-7", 42)
    }


@pytest.mark.parametrize(
    ("message", "waits"),
    [
        (pb.SynchronizeRequest(wait_s=2.0), True),
        (pb.SynchronizeRequest(), False),
        (pb.SynchronizeRequest(wait_s=float("nan")), False),
    ],
)
def test_waiting_calls_are_distinguished(message: pb.SynchronizeRequest, waits: bool) -> None:
    assert Call(SYNCHRONIZE, message.SerializeToString()).waits is waits
    assert not Call(SYNCHRONIZE, b"\xff").waits


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
@pytest.mark.parametrize("name", MODELS)
def test_every_defect_can_be_put_into_every_model(defect: Defect, name: str) -> None:
    data, changed = MODELS[name](), False
    for seed in range(10):
        model = onnx.load_from_string(data)
        defect(model, Random(seed))
        defect(model, Random(seed + 1))
        changed |= model.SerializeToString() != data
    assert changed or name != "residual"  # others have no weights, or no attributes


def test_files_are_drawn_from_the_seed() -> None:
    first, again = (list(itertools.islice(files(Random(7)), 60)) for _ in range(2))
    assert first == again
    assert len(set(first)) > 50


DATA = b"a file"
SHA = hashlib.sha256(DATA).hexdigest()
PROBLEM = {"content-type": uploads.PROBLEM}


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (httpx.Response(201, json={"sha256": SHA}), ""),
        (httpx.Response(201, json={"sha256": "0" * 64}), "201 of another file"),
        (httpx.Response(422, json={"status": 422}, headers=PROBLEM), ""),
        (httpx.Response(422, json={"status": 422}), "422 without a problem document"),
        (httpx.Response(422, text="no"), "422 without JSON"),
        (httpx.Response(500, json={"status": 500}, headers=PROBLEM), "500"),
        (httpx.Response(302, json={}), "302"),
    ],
)
def test_answers_to_uploads_are_judged(answer: httpx.Response, fault: str) -> None:
    assert uploads.fault_of(answer, DATA) == fault


def test_failures_are_counted_and_some_messages_kept(tmp_path: Path) -> None:
    said: list[str] = []
    failures = Failures(said.append, tmp_path)
    for number in range(KEPT_OF_A_KIND + 3):
        failures.note("HTTP 500", b"%d" % number)
    failures.note("import hung", b"x")
    assert failures.kinds == {"HTTP 500": KEPT_OF_A_KIND + 3, "import hung": 1}
    assert len(said) == len(list(tmp_path.iterdir())) == KEPT_OF_A_KIND + 1


def test_growth_is_measured_after_the_warm_up() -> None:
    growth = Growth()
    for number in range(101):
        grown = 50_000_000 if number >= 20 else number * 2_500_000
        growth.note(number * 10, 100_000_000 + grown + number * 10 * 7, 5 + (number == 3))
    assert growth.bytes_per_message == pytest.approx(7.0)
    assert growth.new_files == 0


def found(**changes: object) -> FuzzResult:
    growth = Growth([0, 50, 100, 150], [10 << 20] * 4, [9] * 4)
    facts = {
        "asked": {fleet.KIND: 10, uploads.KIND: 5, imports.KIND: 5},
        "answers": {
            fleet.KIND: Counter(OK=6, NOT_FOUND=4),
            uploads.KIND: Counter({"201": 2, "422": 3}),
            imports.KIND: Counter(imported=1, refused=4),
        },
        "growth": {fleet.KIND: growth, uploads.KIND: growth},
        "served": 2,
        "tried": 2,
        "import_bytes": 100 << 20,
    }
    return FuzzResult(**facts | changes)  # type: ignore[arg-type]


def missed(figures: list[Figure]) -> list[str]:
    return [each.name for each in figures if each.reached is False]


def test_a_run_without_failures_reaches_all_aims() -> None:
    figures = figures_of(found())
    assert missed(figures) == []
    assert (figures[0].value, figures[1].note) == (20, "OK 6, NOT_FOUND 4")


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"failures": Counter({"gRPC Synchronize worker UNKNOWN": 1})}, "statuses that fleet.proto"),
        ({"failures": Counter({"HTTP 500": 1})}, "responses 5xx"),
        ({"failures": Counter({"HTTP 422 without JSON": 1})}, "responses but 201"),
        ({"failures": Counter({"import crashed SIGSEGV": 1})}, "import: crashes"),
        ({"failures": Counter({"import hung": 1})}, "import: hangs"),
        ({"failures": Counter({"import untyped KeyError": 1})}, "errors that are not ours"),
        ({"import_bytes": 3 << 30}, "most memory taken"),
        ({"server_ended": 1}, "times it ended"),
        ({"served": 1}, "served afterwards"),
        ({"asked": {fleet.KIND: 100}}, "messages sent"),
        (
            {"growth": {fleet.KIND: Growth([0, 50, 100, 150], [n << 20 for n in range(4)], [9] * 4)}},
            "memory with 1,000",
        ),
        ({"growth": {fleet.KIND: Growth([0, 50, 100], [1, 1, 1], [9, 9, 90])}}, "open files"),
    ],
)
def test_every_kind_of_failure_misses_an_aim(changes: dict[str, object], name: str) -> None:
    (one,) = missed(figures_of(found(**changes)))
    assert name in one

"""The client and a service that is slow, sends invalid responses or is unavailable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from core.tokens import Scope
from system.tls import TlsError, TlsFiles
from tests.unit.tunefarm.answering import BROKEN, Reply, Request, answering, json_reply
from tests.unit.tunefarm.samples import job
from tunefarm.client.client import ATTEMPTS, Client, ClientError, ProblemError, UnreachableError
from tunefarm.client.values import JobEvent, JobRequest

JOB = asdict(job()) | {"finished": False, "a field of tomorrow": 1}


class Script:
    """Answers requests with planned answers in order, and records the requests."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = iter(replies)
        self.requests: list[Request] = []
        self.pauses: list[float] = []

    def __call__(self, request: Request) -> Reply:
        self.requests.append(request)
        return next(self._replies)

    @contextmanager
    def client(self, token: str | None = None) -> Iterator[Client]:
        with answering(self) as url, Client(f"{url}/", token, sleep=self.pauses.append) as client:
            yield client


def events(*events: tuple[int, str, object], is_cut: bool = False) -> Reply:
    sent = [f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n" for number, kind, data in events]
    content = ": ping\n\n".join(["", *sent]).encode()
    return Reply(200, content, {"Content-Type": "text/event-stream"}, is_cut)


def test_an_upload_broken_on_the_way_is_sent_again_in_full(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(b"onnx" * 1000)
    stored = {"sha256": "ab", "name": "net", "size": 4000}
    script = Script(BROKEN, BROKEN, json_reply(stored, 201))
    with script.client() as client:
        assert client.upload(file).sha256 == "ab"
    assert {request.content for request in script.requests} == {b"onnx" * 1000}
    assert script.requests[0].query["name"] == ["net"]
    assert len(script.pauses) == 2


def test_a_job_asked_for_again_is_the_same_job() -> None:
    script = Script(BROKEN, json_reply(JOB, 202))
    with script.client(token="hush") as client:
        assert client.submit(JobRequest("ab", 10, {"x": (1, 3)})) == job()
    first, second = script.requests
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    assert first.headers["Authorization"] == "Bearer hush"
    sent = json.loads(second.content)
    assert sent["shapes"] == {"x": [1, 3]}
    assert "compile_only" not in sent


@pytest.mark.parametrize("upload", [Client.upload, Client.upload_dataset])
def test_an_upload_has_the_bytes_that_its_header_announced(
    upload: Callable[[Client, Path], object], tmp_path: Path
) -> None:
    """A request with fewer bytes would make the service wait for the rest."""
    file, received = tmp_path / "net.npz", []

    def answer(request: Request) -> Reply:
        received.append(request.content)
        file.write_bytes(b"a longer file" if len(received) == 1 else b"a")
        return BROKEN

    file.write_bytes(b"a file")
    shorter = pytest.raises(ClientError, match=r"net\.npz became shorter while it was read: wait until")
    with answering(answer) as url, Client(url, sleep=lambda _: None) as client, shorter:
        upload(client, file)
    assert received[:2] == [b"a file", b"a long"]


def test_a_request_that_is_limited_is_sent_again_after_the_pause_asked_for() -> None:
    later = json_reply({"title": "Too many requests"}, 429, {"Retry-After": "7"})
    hours = json_reply({"title": "Too many requests"}, 429, {"Retry-After": "7200"})
    script = Script(later, hours, json_reply(JOB))
    with script.client() as client:
        assert client.job("j1") == job()
    assert script.pauses == [7.0, 60.0]


def test_a_busy_service_is_retried_and_a_failing_service_is_not() -> None:
    busy = json_reply({"title": "Busy"}, 503, {"Retry-After": "5"})
    script = Script(busy, json_reply({"title": "Storage unavailable"}, 503))
    with script.client() as client, pytest.raises(ProblemError, match="Storage unavailable"):
        client.job("j1")
    assert script.pauses == [5.0]


def test_the_best_model_is_written_only_if_the_etag_changed(tmp_path: Path) -> None:
    into = tmp_path / "model.tar"
    best, held = Reply(200, b"a tar", {"ETag": '"one"'}), Reply(304, b"", {"ETag": '"one"'})
    script = Script(BROKEN, best, held)
    with script.client() as client:
        etag = client.download_best(
            "ab", into, "rpi5", shapes={"x": (1, 3), "mask": (1,)}, exact=True, tf32=True
        )
        assert (etag, into.read_bytes()) == ('"one"', b"a tar")
        into.write_bytes(b"mine")
        assert client.download_best("ab", into, etag=etag) is None
    assert into.read_bytes() == b"mine", "nothing is written while nothing is better"
    broken, first, second = script.requests
    assert first.query == broken.query
    assert first.query == {
        "model": ["ab"],
        "target": ["rpi5"],
        "shape": ["x=1,3", "mask=1"],
        "exact": ["true"],
        "tf32": ["true"],
    }
    assert "If-None-Match" not in first.headers
    assert second.query == {"model": ["ab"], "target": ["native"]}
    assert second.headers["If-None-Match"] == '"one"'


def test_an_untuned_model_leaves_the_file_unchanged(tmp_path: Path) -> None:
    into = tmp_path / "model.tar"
    into.write_bytes(b"older")
    script = Script(json_reply({"title": "No artifact"}, 404))
    with script.client() as client, pytest.raises(ProblemError, match="No artifact"):
        client.download_best("ab", into)
    assert into.read_bytes() == b"older"
    assert [path.name for path in tmp_path.iterdir()] == ["model.tar"], "no part of a file is left"


def test_events_are_asked_for_again_when_too_many_watch() -> None:
    busy = json_reply({"title": "Too many requests"}, 429, {"Retry-After": "5"})
    done = json_reply(JOB | {"state": "done", "finished": True})
    script = Script(busy, events((1, "state", {"state": "done"})), done)
    with script.client() as client:
        assert [event.id for event in client.events("j1")] == ["1"]
    assert script.pauses == [5.0]
    with Script(*[busy] * ATTEMPTS).client() as client, pytest.raises(ProblemError, match="Too many"):
        list(client.events("j1"))


def test_a_request_is_given_up_in_the_end() -> None:
    later = json_reply({"title": "Too many requests", "detail": "Try again in 9 s."}, 429)
    with Script(*[later] * ATTEMPTS).client() as client, pytest.raises(ProblemError, match="in 9 s"):
        client.job("j1")


def test_creating_a_token_is_not_sent_again() -> None:
    script = Script(BROKEN)
    with script.client() as client, pytest.raises(UnreachableError):
        client.create_token("ci", [Scope.READ], None)
    assert json.loads(script.requests[0].content) == {
        "name": "ci", "scopes": ["read"], "expires_after_s": None,
    }  # fmt: skip


def test_tokens_are_values() -> None:
    stored = {"id": "t1", "name": "ci", "scopes": ["read"], "state": "active", "created_at": 1.0}
    stored |= {"expires_at": None, "revoked_at": None, "last_used_at": 2.0, "a field of tomorrow": 1}
    script = Script(
        json_reply(stored | {"token": "hush"}), json_reply({"items": [stored]}), json_reply(stored)
    )
    with script.client() as client:
        made = client.create_token("ci", [Scope.READ], 60.0)
        assert (made.token, made.scopes) == ("hush", (Scope.READ,))
        assert "hush" not in repr(made)
        assert [token.id for token in client.tokens()] == ["t1"]
        assert client.revoke_token("t/1").id == "t1"
    assert script.requests[2].method == "DELETE"
    assert script.requests[2].path == "/v1/tokens/t%2F1"


@pytest.mark.parametrize(
    ("url", "token", "warned"),
    [
        ("http://farm:8760", "hush", True),
        ("https://farm:8760", "hush", False),
        ("http://farm:8760", None, False),
        ("http://127.0.0.2:8760", "hush", False),
        ("http://[::1]:8760", "hush", False),
    ],
)
def test_sending_a_token_without_tls_causes_a_warning(
    url: str, token: str | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(url, token):
        assert ("is sent in clear" in caplog.text) is warned
    assert "hush" not in caplog.text


def test_files_for_tls_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r"gone\.pem can't be read"):
        Client("https://farm:8760", tls=TlsFiles(ca=tmp_path / "gone.pem"))


def test_an_unreachable_service_is_named() -> None:
    script = Script(*[BROKEN] * ATTEMPTS)
    with (
        script.client() as client,
        pytest.raises(UnreachableError, match=r"127\.0\.0\.1:\d+ \(Remote end closed"),
    ):
        client.job("j1")
    gone = Client("http://127.0.0.1:1", sleep=script.pauses.append)
    with gone, pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:1 \(.*Connection refused\)"):
        gone.job("j1")


def test_a_problem_has_the_services_message() -> None:
    problem = {
        "type": "urn:x:unknown-model",
        "title": "Unknown model",
        "detail": "Upload it first.",
        "status": 422,
    }
    with Script(json_reply(problem, 422)).client() as client, pytest.raises(ProblemError) as refused:
        client.submit(JobRequest("ab", 10))
    error = refused.value
    assert (error.status, error.kind, error.title) == (422, "urn:x:unknown-model", "Unknown model")
    assert str(error) == "Upload it first."


@pytest.mark.parametrize(
    "answer",
    [
        Reply(200, b"<html>a proxy</html>"),
        json_reply([1]),
        json_reply({"id": "j1"}, 200),
        json_reply(JOB | {"state": "dreaming"}),
        Reply(502, b"<html>"),
        json_reply({"title": None}, 404),
    ],
)
def test_an_invalid_job_response_is_a_readable_error(answer: Reply) -> None:
    with Script(answer).client() as client, pytest.raises(ClientError) as refused:
        client.job("j1")
    assert "\n" not in str(refused.value)


def test_jobs_are_fetched_a_page_at_a_time() -> None:
    script = Script(
        json_reply({"items": [JOB | {"id": "b"}], "next": "b"}),
        json_reply({"items": [JOB | {"id": "a"}], "next": None}),
    )
    with script.client() as client:
        assert [one.id for one in client.jobs()] == ["b", "a"]
    assert script.requests[1].query["before"] == ["b"]


def test_events_go_on_after_a_break_without_loss_or_repetition() -> None:
    finished = JOB | {"state": "done"}
    script = Script(
        events((1, "state", {"state": "tuning"}), is_cut=True),
        BROKEN,
        events((2, "progress", {"done": 3})),
        json_reply(JOB),
        events((3, "state", {"state": "done"})),
        json_reply(finished),
    )
    with script.client() as client:
        seen = list(client.events("j1"))
    assert [event.id for event in seen] == ["1", "2", "3"]
    assert seen[1] == JobEvent("2", "progress", {"done": 3})
    asked = [request.headers.get("Last-Event-ID") for request in script.requests if "events" in request.path]
    assert asked == [None, "1", "1", "2"]


def test_pings_are_not_events() -> None:
    sent = events((1, "progress", {"done": 1}), (2, "progress", {"done": 2}))
    assert sent.content.count(b": ping") == 2
    with Script(sent, json_reply(JOB | {"state": "done"})).client() as client:
        assert [event.data for event in client.events("j1")] == [{"done": 1}, {"done": 2}]


def test_events_of_a_finished_job_that_has_none_left_end() -> None:
    script = Script(Reply(204), json_reply(JOB | {"state": "failed"}))
    with script.client() as client:
        assert list(client.events("j1", after="9")) == []


def test_events_of_a_service_that_stays_away_end_in_an_error() -> None:
    script = Script(*[BROKEN] * ATTEMPTS)
    with script.client() as client, pytest.raises(UnreachableError):
        list(client.events("j1"))


def test_events_of_an_unknown_job_are_a_problem() -> None:
    answer = json_reply({"title": "Job not found", "detail": "There is no such job."}, 404)
    with Script(answer).client() as client, pytest.raises(ProblemError, match="no such job"):
        list(client.events("nope"))


def test_a_broken_download_starts_again(tmp_path: Path) -> None:
    into = tmp_path / "artifact.tar"
    with Script(Reply(200, b"half", is_cut=True), Reply(200, b"whole")).client() as client:
        client.download("j1", into)
    assert into.read_bytes() == b"whole"


def test_an_incomplete_download_leaves_the_file_unchanged(tmp_path: Path) -> None:
    into = tmp_path / "outputs.npz"
    into.write_bytes(b"before")
    script = Script(*[Reply(200, b"half", is_cut=True)] * 20)
    with script.client() as client, pytest.raises(ClientError):
        client.download_outputs("j1", into)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("outputs.npz", b"before")]


def test_a_refused_download_writes_nothing(tmp_path: Path) -> None:
    answer = json_reply({"title": "No artifact", "detail": "Job j1 is tuning."}, 409)
    with Script(answer).client() as client, pytest.raises(ProblemError, match="is tuning"):
        client.download("j1", tmp_path / "artifact.tar")
    assert list(tmp_path.iterdir()) == []


def test_best_schedules_omit_workloads_without_a_schedule() -> None:
    schedule: dict[str, object] = {"workload": "1", "device_class": "c", "trace": "[]", "target": "{}"}
    schedule |= {"latency_s": 1.0, "run_s": [1.0]}
    with Script(
        json_reply({"device_class": "c", "schedules": {"1": schedule, "2": None}})
    ).client() as client:
        assert list(client.best_of(["1", "2"])) == ["1"]


@pytest.mark.parametrize("url", ["farm:8760", "", "ftp://farm", "http://farm:port", "http://[::1"])
def test_an_address_that_is_no_url_of_a_service_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"http://|Failed to parse"):
        Client(url)


def test_a_proxy_of_the_environment_is_used_but_not_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Script(json_reply(JOB), json_reply(JOB))
    with answering(proxy) as url:
        monkeypatch.setenv("http_proxy", url.replace("//", "//me:secret@"))
        with Client("http://farm:8760") as client:
            assert client.job("j1") == job()
        (asked,) = proxy.requests
        assert asked.path == "http://farm:8760/v1/jobs/j1"
        assert asked.headers["Proxy-Authorization"] == "Basic bWU6c2VjcmV0"
        monkeypatch.setenv("no_proxy", "farm")
        with Client("http://farm:8760", sleep=proxy.pauses.append) as client, pytest.raises(UnreachableError):
            client.job("j1")
        with Script(json_reply(JOB)).client() as client:
            assert client.job("j1") == job()
    assert len(proxy.requests) == 1

"""Schedulers read the outlines of models that clients ask for, and give up files that kill them."""

from __future__ import annotations

import pytest

from compiler.importing.spec import ModelError
from records.jobs import deletion, models, outlines
from records.jobs.models import ModelNotFound
from records.jobs.outlines import GAVE_UP, LAPSES_S, MAX_ATTEMPTS, OutlineNotFound, StoredOutline
from records.storage import blobs
from scheduler.model_compiler import MODEL_GONE
from scheduler.upkeep.outlines import OutlineReader, read

from .farm import Farm


def ask(farm: Farm) -> str:
    with farm.database.begin() as session:
        sha = blobs.put(session, b"a model")
        models.add(session, sha, "net", farm.now)
        outlines.request(session, sha)
    return sha


def stored(farm: Farm, sha: str) -> StoredOutline:
    with farm.database.reading() as session:
        return outlines.get(session, sha)


def test_the_sweep_finds_requested_outlines(farm: Farm) -> None:
    sha = ask(farm)
    assert stored(farm, sha) == StoredOutline(None, "")
    reader = OutlineReader(farm.context)
    reader.start_waiting()
    reader.start(sha)
    reader.stop()
    found = stored(farm, sha).outline
    assert found is not None
    assert found.inputs[0].shape == ("batch", 3)
    with farm.database.reading() as session:
        assert outlines.waiting(session, 10) == []


def test_an_unreadable_file_has_a_reason_and_can_be_retried(farm: Farm) -> None:
    sha = ask(farm)
    farm.compiler.import_error = ModelError("the file is truncated")
    read(farm.context, sha)
    assert stored(farm, sha) == StoredOutline(None, "the file is truncated")
    farm.compiler.import_error = None
    read(farm.context, sha)
    assert stored(farm, sha).problem, "nobody asked again"
    ask(farm)
    read(farm.context, sha)
    assert stored(farm, sha).outline is not None


def test_an_attempt_that_died_is_repeated_a_few_times(farm: Farm) -> None:
    sha = ask(farm)
    farm.compiler.import_error = RuntimeError("the process died")
    for _ in range(MAX_ATTEMPTS):
        with pytest.raises(RuntimeError, match="died"):
            read(farm.context, sha)
        read(farm.context, sha)
        assert stored(farm, sha) == StoredOutline(None, ""), "another scheduler may be reading it"
        farm.now += LAPSES_S
    read(farm.context, sha)
    assert stored(farm, sha).problem == GAVE_UP


def test_a_deleted_model_has_no_outline(farm: Farm) -> None:
    sha = ask(farm)
    with farm.database.begin() as session:
        assert deletion.drop_uploads(session, farm.now + deletion.UPLOAD_GRACE_S + 1, 10) == 1
    read(farm.context, sha)
    with farm.database.begin() as session:
        outlines.put(session, sha, "too late")
        with pytest.raises(OutlineNotFound):
            outlines.get(session, sha)
        with pytest.raises(ModelNotFound):
            outlines.request(session, sha)


def test_a_lost_file_is_reported(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    sha = ask(farm)

    def gone(*_: object) -> None:
        raise blobs.BlobNotFound("gone")

    monkeypatch.setattr(blobs, "chunks", gone)
    read(farm.context, sha)
    assert stored(farm, sha).problem == MODEL_GONE

from __future__ import annotations

import hashlib
import io
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, delete, event, func, select
from sqlalchemy.orm import Session

from records.jobs import deletion, models
from records.storage import blobs
from records.storage.database import Database
from records.storage.tables import ChunkRow


def chunks(session: Session, sha: str) -> list[bytes]:
    count = session.scalar(select(func.count()).where(ChunkRow.sha == sha)) or 0
    return [blobs.chunk(session, sha, position) for position in range(count)]


class TestBlobs:
    @settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.binary(max_size=300))
    def test_any_bytes_come_back(self, session: Session, data: bytes) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blobs, "CHUNK_BYTES", 7)
            sha = blobs.put(session, data)
            pieces = chunks(session, sha)
        assert sha == hashlib.sha256(data).hexdigest()
        assert b"".join(pieces) == data
        assert blobs.size(session, sha) == len(data)
        assert all(1 <= len(piece) <= 7 for piece in pieces)

    def test_a_large_blob_is_split_into_rows(self, session: Session) -> None:
        data = bytes(range(256)) * 40_000
        sha = blobs.put(session, data)
        assert blobs.get(session, sha) == data
        assert [len(piece) for piece in chunks(session, sha)] == [4194304, 4194304, 1851392]

    def test_a_file_is_read_a_chunk_at_a_time(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(blobs, "CHUNK_BYTES", 4)
        file = Mock(wraps=io.BytesIO(b"0123456789"))
        blobs.put_file(session, file, "sha", 10)
        assert [call.args for call in file.read.call_args_list] == [(4,), (4,), (4,)]
        assert chunks(session, "sha") == [b"0123", b"4567", b"89"]
        blobs.put_file(session, file, "sha", 10)
        assert file.read.call_count == 3, "a file that is stored is not read again"

    def test_the_same_bytes_are_stored_once(self, session: Session) -> None:
        assert blobs.put(session, b"data") == blobs.put(session, b"data")
        assert session.scalar(select(func.count()).select_from(ChunkRow)) == 1

    def test_an_unknown_digest_is_not_found(self, session: Session) -> None:
        assert blobs.size(session, "feed") is None
        with pytest.raises(blobs.BlobNotFound, match="there is no blob 'feed'"):
            blobs.get(session, "feed")


class TestModels:
    def test_a_model_survives_a_round_trip(self, session: Session) -> None:
        sha = blobs.put(session, b"a model")
        added = models.add(session, sha, "resnet", now=5.0)
        assert added == models.UploadInfo(sha, "resnet", 7, 5.0)
        assert models.get(session, sha) == added

    def test_adding_a_blob_again_changes_only_its_age(self, session: Session) -> None:
        sha = blobs.put(session, b"a model")
        models.add(session, sha, "resnet", now=5.0)
        again = models.UploadInfo(sha, "resnet", 7, 6.0)
        assert models.add(session, sha, "another name", now=6.0) == again

    def test_a_model_without_a_blob_is_refused(self, session: Session) -> None:
        with pytest.raises(blobs.BlobNotFound):
            models.add(session, "feed", "resnet", now=5.0)

    def test_an_unknown_model_is_not_found(self, session: Session) -> None:
        with pytest.raises(models.ModelNotFound) as caught:
            models.get(session, "feed")
        assert str(caught.value) == "there is no model 'feed'"


class TestUploads:
    """A file is stored a chunk a transaction, before the transaction that refers to it."""

    DATA = b"0123456789abcdef!"

    def test_other_writers_wait_for_at_most_one_chunk(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(blobs, "CHUNK_BYTES", 4)
        of_transactions = [0]

        def begin(_session: Session, _transaction: object, _connection: object) -> None:
            of_transactions.append(0)

        def count(_c: object, _cursor: object, statement: str, *_: object) -> None:
            of_transactions[-1] += statement.startswith("INSERT INTO blob_chunks")

        event.listen(Session, "after_begin", begin)
        event.listen(Engine, "after_cursor_execute", count)
        try:
            sha, size = blobs.stage(database, io.BytesIO(self.DATA))
            with database.begin() as session:
                blobs.put_file(session, io.BytesIO(self.DATA), sha, size)
        finally:
            event.remove(Session, "after_begin", begin)
            event.remove(Engine, "after_cursor_execute", count)
        assert (sum(of_transactions), max(of_transactions)) == (5, 1)
        with database.begin() as session:
            assert blobs.get(session, sha) == self.DATA

    def test_chunks_deleted_during_an_upload_are_stored_again(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(blobs, "CHUNK_BYTES", 4)
        sha, size = blobs.stage(database, io.BytesIO(self.DATA))
        with database.begin() as session:
            assert deletion.drop_blobs(session, 10).blobs == 1, "nothing refers to it yet"
        blobs.stage(database, io.BytesIO(self.DATA))
        with database.begin() as session:
            session.execute(delete(ChunkRow).where(ChunkRow.position == 1))
            blobs.put_file(session, io.BytesIO(self.DATA), sha, size)
            assert blobs.get(session, sha) == self.DATA

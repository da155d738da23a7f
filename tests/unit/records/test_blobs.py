from __future__ import annotations

import hashlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from records.jobs import models
from records.storage import blobs
from records.storage.tables import ChunkRow


class TestBlobs:
    @settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.binary(max_size=300))
    def test_any_bytes_come_back(self, session: Session, data: bytes) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blobs, "CHUNK_BYTES", 7)
            sha = blobs.put(session, data)
            pieces = list(blobs.chunks(session, sha))
        assert sha == hashlib.sha256(data).hexdigest()
        assert b"".join(pieces) == data
        assert blobs.size(session, sha) == len(data)
        assert all(1 <= len(piece) <= 7 for piece in pieces)

    def test_a_large_blob_is_split_into_rows(self, session: Session) -> None:
        data = bytes(range(256)) * 40_000
        sha = blobs.put(session, data)
        assert blobs.get(session, sha) == data
        assert [len(piece) for piece in blobs.chunks(session, sha)] == [4194304, 4194304, 1851392]

    def test_the_same_bytes_are_stored_once(self, session: Session) -> None:
        assert blobs.put(session, b"data") == blobs.put(session, b"data")
        assert session.scalar(select(func.count()).select_from(ChunkRow)) == 1

    def test_an_unknown_digest(self, session: Session) -> None:
        assert blobs.size(session, "feed") is None
        with pytest.raises(blobs.BlobNotFound, match="there is no blob 'feed'"):
            blobs.get(session, "feed")
        with pytest.raises(blobs.BlobNotFound):
            blobs.chunks(session, "feed")


class TestModels:
    def test_round_trip(self, session: Session) -> None:
        sha = blobs.put(session, b"a model")
        added = models.add(session, sha, "resnet", now=5.0)
        assert added == models.ModelInfo(sha, "resnet", 7, 5.0)
        assert models.get(session, sha) == added

    def test_adding_again_changes_nothing_but_its_age(self, session: Session) -> None:
        sha = blobs.put(session, b"a model")
        models.add(session, sha, "resnet", now=5.0)
        again = models.ModelInfo(sha, "resnet", 7, 6.0)
        assert models.add(session, sha, "another name", now=6.0) == again

    def test_the_bytes_come_first(self, session: Session) -> None:
        with pytest.raises(blobs.BlobNotFound):
            models.add(session, "feed", "resnet", now=5.0)

    def test_an_unknown_model(self, session: Session) -> None:
        with pytest.raises(models.ModelNotFound) as caught:
            models.get(session, "feed")
        assert str(caught.value) == "there is no model 'feed'"

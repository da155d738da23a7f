"""The contract of blob stores: the database, a folder, a bucket of moto's S3."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3fs import S3FileSystem
from sqlalchemy import func, select

from records.storage import blobs
from records.storage.blob_store import BlobStore
from records.storage.database import Database, StorageError
from records.storage.tables import BlobRow, ChunkRow
from tests.services import sqlite

DATA = bytes(range(256)) * 50_000  # more than one part of an upload to S3, and three chunks
SHA = hashlib.sha256(DATA).hexdigest()
SOON = time.time() + 3600.0


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 with the bucket `models`."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_REGION", "us-east-1")
        S3FileSystem.clear_instance_cache()
        S3FileSystem().mkdir("models")
        yield "s3://models"
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "folder":
        return BlobStore(f"file://{tmp_path}/blobs")
    return BlobStore(f"{request.getfixturevalue('s3')}/{tmp_path.name}")


@pytest.fixture(params=["database", "folder", "s3"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    store = None
    if request.param == "folder":
        store = BlobStore(f"file://{tmp_path}/blobs")
    elif request.param == "s3":
        store = BlobStore(f"{request.getfixturevalue('s3')}/{tmp_path.name}")
    database = Database(sqlite(tmp_path / "tunefarm.db"), blob_store=store)
    yield database
    database.close()


def put(database: Database, data: bytes) -> str:
    with database.begin() as session:
        return blobs.put(session, data)


def get(database: Database, sha: str) -> bytes:
    with database.reading() as session:
        return blobs.get(session, sha)


def drop_row(database: Database, sha: str) -> None:
    with database.begin() as session:
        session.execute(BlobRow.__table__.delete().where(BlobRow.sha == sha))  # type: ignore[attr-defined]


@pytest.mark.parametrize("data", [b"", b"a model", DATA], ids=len)
def test_stored_blobs_are_read_by_their_digest(database: Database, data: bytes) -> None:
    sha = put(database, data)
    assert sha == hashlib.sha256(data).hexdigest()
    assert put(database, data) == sha
    assert get(database, sha) == data
    with database.reading() as session:
        assert blobs.size(session, sha) == len(data)
        assert (session.scalar(select(func.count()).select_from(ChunkRow)) == 0) == (
            database.blob_store is not None or not data
        )


def test_an_upload_is_there_before_the_transaction(database: Database) -> None:
    blobs.upload(database, io.BytesIO(DATA), SHA, len(DATA))
    with database.begin() as session:
        blobs.put_file(session, io.BytesIO(DATA), SHA, len(DATA))
        assert blobs.get(session, SHA) == DATA


def test_an_unknown_digest_is_not_found(database: Database) -> None:
    with pytest.raises(blobs.BlobNotFound):
        get(database, "feed")


def test_a_blob_that_became_shorter_is_an_error(database: Database) -> None:
    """Callers that read until they have all bytes would otherwise read for ever."""
    put(database, DATA)
    kept = DATA[: blobs.CHUNK_BYTES + 7]
    if (store := database.blob_store) is not None:
        store._files.pipe_file(store._path(SHA), kept)
    else:
        with database.begin() as session:
            second = session.get_one(ChunkRow, (SHA, 1))
            second.data = kept[blobs.CHUNK_BYTES :]
    with database.reading() as session:
        assert blobs.chunk(session, SHA, 0) == kept[: blobs.CHUNK_BYTES]
        with pytest.raises(StorageError, match="is shorter than when it was stored: restore it"):
            blobs.chunk(session, SHA, 1)
        if store is not None:  # S3 refuses a range behind the end
            with pytest.raises(StorageError):
                blobs.chunk(session, SHA, 2)


def test_only_unreferenced_files_are_deleted(database: Database) -> None:
    kept, dropped = put(database, b"kept"), put(database, b"dropped")
    drop_row(database, dropped) if database.blob_store else None
    assert blobs.sweep(database, 0.0) == 0, "it may be about to get its row"
    assert blobs.sweep(database, SOON) == (1 if database.blob_store else 0)
    assert get(database, kept) == b"kept"
    assert put(database, b"dropped") == dropped
    assert get(database, dropped) == b"dropped"


def test_blobs_in_the_database_are_read_when_a_store_is_set(store: BlobStore, tmp_path: Path) -> None:
    url = sqlite(tmp_path / "tunefarm.db")
    before, after = Database(url), Database(url, blob_store=store)
    old, new = put(before, b"old"), put(after, b"new")
    assert (get(after, old), get(after, new)) == (b"old", b"new")
    assert put(after, b"old") == old
    assert store.size(old) is None
    with pytest.raises(StorageError, match="set TUNEFARM_BLOB_STORE to it again"):
        get(before, new)
    before.close()
    after.close()


def test_a_blob_with_another_digest_is_removed(store: BlobStore) -> None:
    with pytest.raises(StorageError, match="was damaged"):
        store.write(io.BytesIO(DATA[1:]), SHA, len(DATA))
    assert store.size(SHA) is None
    assert store.older_than(SOON) == []


def test_a_truncated_file_is_deleted(store: BlobStore) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 0:
                raise OSError("the disk is gone")
            return super().read(size)

    with pytest.raises(StorageError, match="the disk is gone"):
        store.write(Broken(DATA), SHA, len(DATA))
    assert store.older_than(SOON) == []


def test_incomplete_files_of_killed_writers_are_deleted(tmp_path: Path) -> None:
    store = BlobStore(f"file://{tmp_path}/blobs")
    database = Database(sqlite(tmp_path / "tunefarm.db"), blob_store=store)
    left = tmp_path / "blobs" / f"{SHA}.{'0' * 32}.new"
    left.write_bytes(b"half")
    foreign = tmp_path / "blobs" / "README"
    foreign.touch()
    assert blobs.sweep(database, SOON) == 1
    assert os.listdir(tmp_path / "blobs") == ["README"]
    database.close()


@pytest.mark.parametrize("url", ["/folder", "file://host/folder", "gs://bucket", "s3://", "file:///"])
def test_another_address_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(StorageError, match="TUNEFARM_BLOB_STORE is file:///FOLDER or s3://BUCKET/PREFIX"):
        BlobStore(url)


def test_a_bucket_that_is_missing_is_named(s3: str) -> None:
    with pytest.raises(StorageError, match="the blob store s3://nobodys/models"):
        BlobStore("s3://nobodys/models").write(io.BytesIO(DATA), SHA, len(DATA))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"failed .*: check TUNEFARM_BLOB_STORE"):
        BlobStore(f"file://{tmp_path}/file/blobs")

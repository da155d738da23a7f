"""Blob stores: blobs as files in a folder or in an S3-compatible bucket, in place of the database.

A file's name is the SHA-256 of its content. It appears complete, and before the row that names it is
committed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import uuid
from collections.abc import Iterator
from typing import IO, Any
from urllib.parse import urlsplit

from records.storage.database import StorageError

VARIABLE = "TUNEFARM_BLOB_STORE"
_PIECE_BYTES = 8 << 20
_NAME = re.compile(r"[0-9a-f]{64}(\.[0-9a-f]{32}\.new)?")


class BlobStore:
    """The files below a `file:///FOLDER` or `s3://BUCKET/PREFIX` URL. All methods raise StorageError.

    boto's environment variables, such as AWS_ENDPOINT_URL, set S3's keys, region and endpoint.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._is_folder = parts.scheme == "file" and not parts.netloc and len(parts.path) > 1
        if not self._is_folder and not (parts.scheme == "s3" and parts.netloc):
            raise StorageError(f"{VARIABLE} is file:///FOLDER or s3://BUCKET/PREFIX, not {url!r}")
        self.url = url
        with self._failures():
            try:
                import fsspec

                # Listings aren't cached, because other processes write there too.
                options = {} if self._is_folder else {"use_listings_cache": False}
                self._files, root = fsspec.url_to_fs(url, **options)
            except ImportError as error:
                raise StorageError(
                    f"{VARIABLE}={url} needs a library: install tunefarm[s3] ({error})"
                ) from error
            self._root = root.rstrip("/")
            if self._is_folder:
                self._files.makedirs(self._root, exist_ok=True)

    def write(self, file: IO[bytes], sha: str, size: int) -> None:
        """Store a file of `size` bytes with this SHA-256, unless it is stored already."""
        if self.size(sha) == size:
            return
        path, digest = self._path(sha), hashlib.sha256()
        # An S3 object appears when it is committed. A file in a folder is renamed then.
        fresh = f"{path}.{uuid.uuid4().hex}.new" if self._is_folder else path
        file.seek(0)
        with self._failures():
            copy = self._files.open(fresh, "wb", block_size=_PIECE_BYTES, autocommit=self._is_folder)
            try:
                while piece := file.read(_PIECE_BYTES):
                    digest.update(piece)
                    copy.write(piece)
                if digest.hexdigest() != sha:
                    raise StorageError(f"the file {sha} was damaged before it was stored: send it again")
                if self._is_folder:
                    copy.flush()
                    os.fsync(copy.fileno())
                copy.close()
                if self._is_folder:
                    self._files.mv(fresh, path)
                else:
                    copy.commit()
            except BaseException:
                with contextlib.suppress(Exception):  # `sweep` deletes the rest later
                    if self._is_folder:
                        copy.close()
                        self._files.rm_file(fresh)
                    else:
                        copy.discard()
                        copy.closed = True  # otherwise it would send the rest when it is garbage collected
                raise

    def read(self, sha: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes of a file from `start`."""
        with self._failures():
            return bytes(self._files.cat_file(self._path(sha), start=start, end=start + length))

    def size(self, sha: str) -> int | None:
        """Return the size of a file in bytes, None if there is none."""
        with self._failures():
            try:
                return int(self._files.info(self._path(sha))["size"])
            except FileNotFoundError:
                return None

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        with self._failures(), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def older_than(self, at: float) -> list[str]:
        """Return the names of files that were written before `at`: SHA-256s, and temporary files of killed
        writers."""
        with self._failures():
            try:
                found: list[dict[str, Any]] = self._files.ls(self._root, detail=True)
            except FileNotFoundError:  # an S3 prefix without objects
                return []
            named = [(file["name"].rpartition("/")[2], file) for file in found if file["type"] == "file"]
            return [name for name, file in named if _NAME.fullmatch(name) and _written_at(file) < at]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except FileNotFoundError as error:
            raise StorageError(f"the blob store {self.url} lacks a file: {error}") from error
        except Exception as error:  # exceptions of botocore, aiohttp and the system have no common class
            cause = str(error) or type(error).__name__
            raise StorageError(
                f"the blob store {self.url} failed ({cause}): check {VARIABLE} and the access to it"
            ) from error


def _written_at(file: dict[str, Any]) -> float:
    """Return the time at which a listed file was written, in epoch seconds."""
    if "mtime" in file:
        return float(file["mtime"])
    return float(file["LastModified"].timestamp())

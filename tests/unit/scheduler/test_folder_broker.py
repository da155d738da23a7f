"""The folder broker: messages arrive complete and once, and survive failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from threading import Thread

import pytest
from kombu.connection import Connection
from kombu.exceptions import ChannelError

from scheduler.app import QUEUE, make_app
from scheduler.folder_broker import Channel


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[Channel]:
    with connect(tmp_path) as connection:
        yield connection.default_channel


def connect(folder: Path) -> Connection:
    connection: Connection = make_app(str(folder)).connection_for_write()
    return connection


def read_all(channel: Channel) -> list[int]:
    found = []
    while True:
        try:
            found.append(channel._get(QUEUE)["number"])
        except Empty:
            return found


def test_messages_come_in_the_order_they_were_sent(channel: Channel) -> None:
    for number in range(20):
        channel._put(QUEUE, {"number": number})
    assert read_all(channel) == list(range(20))
    assert read_all(channel) == []


def test_messages_survive_a_restart(tmp_path: Path, channel: Channel) -> None:
    channel._put(QUEUE, {"number": 1})
    channel.close()  # type: ignore[no-untyped-call]
    with connect(tmp_path) as later:
        assert read_all(later.default_channel) == [1]


def test_a_message_that_is_being_written_is_not_seen(tmp_path: Path, channel: Channel) -> None:
    channel._put(QUEUE, {"number": 1})
    [path] = tmp_path.glob("*.msg")
    path.rename(path.with_suffix(".part"))
    assert read_all(channel) == []


def test_a_damaged_message_is_dropped_and_the_next_is_read(tmp_path: Path, channel: Channel) -> None:
    for text in ("", "{", "[1]", "\ufffd"):
        channel._put(QUEUE, {"number": 0})
        [path] = sorted(tmp_path.glob("*.msg"))[-1:]
        path.write_text(text)
    channel._put(QUEUE, {"number": 1})
    assert read_all(channel) == [1]
    assert list(tmp_path.glob("*.msg")) == []


def test_messages_of_another_queue_stay(channel: Channel) -> None:
    channel._put("other", {"number": 1})
    assert read_all(channel) == []
    assert channel._size("other") == 1  # type: ignore[no-untyped-call]


def test_a_folder_that_cannot_be_written_is_a_channel_error(tmp_path: Path, channel: Channel) -> None:
    (tmp_path / "control").rmdir()
    tmp_path.rmdir()
    with pytest.raises(ChannelError, match="No such file"):
        channel._put(QUEUE, {"number": 1})


def test_each_message_is_delivered_to_one_reader(tmp_path: Path, channel: Channel) -> None:
    found: list[int] = []

    def read() -> None:
        with connect(tmp_path) as connection:
            found.extend(read_all(connection.default_channel))

    for number in range(200):
        channel._put(QUEUE, {"number": number})
    readers = [Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert sorted(found) == list(range(200))

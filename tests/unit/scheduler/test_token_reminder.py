"""The log warns of tokens that expire soon, once a day."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from core.tokens import Scope
from records import access
from records.access import Token
from records.storage.database import Database
from scheduler.upkeep.token_reminder import TokenReminder

DAY_S = 86400.0


def test_tokens_that_expire_soon_are_told_once_a_day(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(f"sqlite:///{tmp_path}/t.db")
    database.migrate()
    ends = {"past": -1.0, "soon": 3 * DAY_S, "later": 15 * DAY_S, "never": None}
    with database.begin() as session:
        for name, end in ends.items():
            access.add_token(session, Token(name, name, frozenset({Scope.READ}), 0.0, end), name)
    reminder = TokenReminder()
    with caplog.at_level(logging.WARNING):
        for now in (0.0, 600.0, DAY_S, DAY_S - 7200.0):
            reminder.remind(database, now)
    database.close()
    told = [record.getMessage() for record in caplog.records]
    # The third time, the clock was set back.
    assert [line.split(":")[0] for line in told] == [
        "token soon (soon) expires in 3.0 days",
        "token soon (soon) expires in 2.0 days",
        "token later (later) expires in 14.0 days",
        "token soon (soon) expires in 2.1 days",
    ]

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.tokens import Scope
from records import access
from records.access import LAST_USED_PRECISION_S, AuditEntry, Token, TokenNotFound
from records.storage.database import Database

BOARD = Token("t1", "board", frozenset({Scope.WORKER, Scope.READ}), created_at=10.0, expires_at=500.0)
SHA = "a" * 64
PUSH = AuditEntry("t1", "POST /v1/jobs", "job", "202", "10.0.0.7")
REFUSED = AuditEntry("nobody", "GET /v1/jobs", "", "401 token-needed", "10.0.0.9")


class TestTokens:
    def test_a_token_survives_a_round_trip(self, session: Session) -> None:
        access.add_token(session, BOARD, SHA)
        assert access.tokens(session) == [BOARD]
        assert access.use_token(session, SHA, 20.0) == BOARD

    def test_an_unknown_secret_is_nobodys(self, session: Session) -> None:
        access.add_token(session, BOARD, SHA)
        assert access.use_token(session, "b" * 64, 20.0) is None

    def test_tokens_are_listed_newest_first(self, session: Session) -> None:
        for number, at in enumerate((3.0, 1.0, 2.0)):
            access.add_token(session, replace(BOARD, id=f"t{number}", created_at=at), str(number))
        assert [token.id for token in access.tokens(session)] == ["t0", "t2", "t1"]

    def test_a_secret_is_stored_once(self, database: Database) -> None:
        with database.begin() as session:
            access.add_token(session, BOARD, SHA)
        with pytest.raises(IntegrityError), database.begin() as session:
            access.add_token(session, replace(BOARD, id="t2"), SHA)

    def test_a_revoked_token_stays_revoked(self, session: Session) -> None:
        access.add_token(session, BOARD, SHA)
        assert access.revoke_token(session, "t1", 30.0).revoked_at == 30.0
        assert access.revoke_token(session, "t1", 40.0).revoked_at == 30.0
        found = access.use_token(session, SHA, 50.0)
        assert found is not None
        assert (found.revoked_at, found.last_used_at) == (30.0, None)
        assert access.tokens(session)[0].last_used_at is None

    def test_an_unknown_token_cannot_be_revoked(self, session: Session) -> None:
        with pytest.raises(TokenNotFound, match="no token 'nope'"):
            access.revoke_token(session, "nope", 1.0)

    def test_use_is_noted_coarsely(self, session: Session) -> None:
        access.add_token(session, BOARD, SHA)
        noted = []
        for now in (100.0, 100.0 + LAST_USED_PRECISION_S / 2, 100.0 + LAST_USED_PRECISION_S):
            access.use_token(session, SHA, now)
            noted.append(access.tokens(session)[0].last_used_at)
        assert noted == [100.0, 100.0, 100.0 + LAST_USED_PRECISION_S]

    def test_a_token_expires_at_the_given_time(self) -> None:
        assert [BOARD.expired(now) for now in (499.9, 500.0, 501.0)] == [False, True, True]
        assert not replace(BOARD, expires_at=None).expired(1e12)

    @pytest.mark.parametrize("wrong", [{"name": ""}, {"scopes": frozenset()}])
    def test_invalid_tokens_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="name and at least one scope"):
            replace(BOARD, **wrong)


class TestAudit:
    def test_the_audit_log_is_read_newest_first_by_page(self, session: Session) -> None:
        for at in (1.0, 2.0, 3.0):
            access.append_audit(session, {PUSH: 1, REFUSED: 7}, at)
        first = access.audit(session, 4)
        assert [line.at for line in first] == [3.0, 3.0, 2.0, 2.0]
        assert {(line.entry, line.times) for line in first} == {(PUSH, 1), (REFUSED, 7)}
        rest = access.audit(session, 4, first[-1].id)
        assert [line.at for line in rest] == [1.0, 1.0]
        assert access.audit(session, 4, rest[-1].id) == []

    def test_old_lines_are_pruned_and_their_ids_never_come_back(self, session: Session) -> None:
        access.append_audit(session, {PUSH: 1}, 1.0)
        access.append_audit(session, {PUSH: 1}, 2.0)
        newest = access.audit(session, 1)[0].id
        assert access.prune_audit(session, 2.0, limit=9) == 1
        assert [line.at for line in access.audit(session, 9)] == [2.0]
        assert access.prune_audit(session, 9.0, limit=9) == 1
        access.append_audit(session, {PUSH: 1}, 3.0)
        assert access.audit(session, 1)[0].id > newest

    def test_many_old_lines_are_pruned_a_few_at_a_time(self, session: Session) -> None:
        for number in range(5):
            access.append_audit(session, {PUSH: 1}, float(number))
        assert [access.prune_audit(session, 4.0, limit=3) for _ in range(3)] == [3, 1, 0]
        assert [line.at for line in access.audit(session, 9)] == [4.0]

    def test_characters_that_databases_reject_are_replaced(self, session: Session) -> None:
        access.append_audit(session, {replace(REFUSED, subject="nul \x00 half \ud800"): 1}, 1.0)
        assert access.audit(session, 1)[0].entry.subject == "nul \ufffd half ?"


def test_no_column_holds_a_secret(session: Session) -> None:
    access.add_token(session, BOARD, SHA)
    (row,) = session.execute(text("SELECT * FROM tokens"))
    assert set(row._mapping) == {
        "id", "name", "sha", "scopes", "created_at", "expires_at", "revoked_at", "last_used_at",
    }  # fmt: skip

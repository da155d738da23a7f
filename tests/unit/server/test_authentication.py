"""Wrong tokens are limited by address, cost the database little, and don't affect valid tokens."""

from __future__ import annotations

import asyncio

import pytest

from core.tokens import Scope
from records import access
from records.access import Token
from server.access.authentication import TOKEN_PREFIX, AccessDenied, Authenticator, token_digest
from server.settings import ServerSettings

from .conftest import CountingDatabase

ADDRESS = "10.0.0.7"


def secret(number: int) -> str:
    return TOKEN_PREFIX + f"{number:043}"


def test_many_wrong_tokens_take_few_transactions_and_valid_tokens_still_work(
    database: CountingDatabase,
) -> None:
    with database.begin() as session:
        token = Token("id", "valid", frozenset({Scope.READ}), 1.0)
        access.add_token(session, token, token_digest(secret(0)))
    settings = ServerSettings(
        database_url="sqlite://", broker="none", token="bootstrap", failure_limit="5/hour"
    )

    async def flood() -> list[int]:
        authenticator = Authenticator(settings, database, lambda: 1000.0)
        statuses = []
        for number in range(1, 201):
            with pytest.raises(AccessDenied) as denied:
                await authenticator.authenticate(f"Bearer {secret(number)}", ADDRESS)
            statuses.append(denied.value.status)
        assert (await authenticator.authenticate(f"Bearer {secret(0)}", ADDRESS)).who == "id"
        return statuses

    database.transactions = 0
    assert asyncio.run(flood()) == [401] * 5 + [429] * 195
    assert database.transactions <= 10

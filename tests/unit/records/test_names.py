"""A worker's name belongs to one token, and to one machine at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy.orm import Session

from core.tokens import Scope
from core.worker import LOST_AFTER_S, DesiredState, WorkerState
from records import access
from records.access import Token
from records.fleet import leases, workers
from records.fleet.names import NameClaim, NameInUse, NameTaken
from records.fleet.workers import WorkerSession
from tests.devices import DEVICE

OURS, THEIRS = NameClaim("ours", "boot-1"), NameClaim("theirs", "boot-2")
# The time from which a worker that was seen at 1.0 is lost.
LATER = 1.0 + LOST_AFTER_S + 1.0


@pytest.fixture(autouse=True)
def tokens(session: Session) -> None:
    for number, name in enumerate(("ours", "theirs")):
        scopes = frozenset({Scope.WORKER})
        access.add_token(session, Token(name, name, scopes, 0.0, expires_at=1000.0), f"digest {number}")


def register(
    session: Session,
    claim: NameClaim,
    *,
    name: str = "board",
    session_id: str = "first",
    now: float = 1.0,
    state: WorkerState = WorkerState.READY,
) -> str | None:
    """Register a session; return the session that it fenced."""
    return workers.register(session, WorkerSession(name, session_id, state, DEVICE, claim=claim), now)


def test_a_name_stays_with_its_token_during_any_absence(session: Session) -> None:
    register(session, OURS)
    for now in (2.0, LATER):
        with pytest.raises(NameTaken, match="board belongs to another token: choose another one with --name"):
            register(session, THEIRS, session_id="second", now=now)
    assert workers.heartbeat(session, WorkerSession("board", "first", WorkerState.READY), LATER)


def revoke(session: Session) -> float:
    access.revoke_token(session, "ours", 2.0)
    return LATER


def expire(_session: Session) -> float:
    return 2000.0


@pytest.mark.parametrize("end", [revoke, expire])
def test_a_name_is_free_when_the_token_is_invalid(session: Session, end: Callable[[Session], float]) -> None:
    register(session, OURS)
    now = end(session)
    assert register(session, THEIRS, session_id="second", now=now) == "first"
    with pytest.raises(NameTaken) if now < 1000.0 else pytest.raises(NameInUse):
        register(session, OURS, session_id="third", now=now)


def test_a_name_without_a_token_becomes_the_first_tokens(session: Session) -> None:
    register(session, NameClaim(None, "boot-1"))
    register(session, NameClaim("ours", "boot-1"), session_id="second")
    with pytest.raises(NameTaken):
        register(session, THEIRS, session_id="third", now=LATER)
    assert register(session, NameClaim(None, "boot-1"), session_id="fourth") == "second", (
        "the bootstrap token's"
    )
    with pytest.raises(NameTaken):
        register(session, THEIRS, session_id="fifth", now=LATER)


@pytest.mark.parametrize("token_id", [None, "ours"])
def test_two_boards_with_the_same_name_do_not_replace_each_other(
    session: Session, token_id: str | None
) -> None:
    one, two = NameClaim(token_id, "boot-1"), NameClaim(token_id, "boot-2")
    register(session, one)
    for now in (2.0, LOST_AFTER_S):
        with pytest.raises(NameInUse, match="another machine works as board: give one of them another name"):
            register(session, two, session_id="second", now=now)
        assert workers.heartbeat(session, WorkerSession("board", "first", WorkerState.READY), now)
    assert register(session, two, session_id="second", now=2 * LATER) == "first"
    with pytest.raises(NameInUse):
        register(session, one, session_id="restarted", now=2 * LATER)


def test_a_restart_on_the_same_machine_takes_over_at_once(session: Session) -> None:
    register(session, OURS)
    assert register(session, OURS, session_id="second", now=2.0) == "first"


def test_a_name_is_free_when_the_worker_has_left(session: Session) -> None:
    register(session, OURS)
    workers.heartbeat(session, WorkerSession("board", "first", WorkerState.OFFLINE), 2.0)
    assert register(session, NameClaim("ours", "boot-2"), session_id="second", now=2.0) == "first"


def test_without_boot_ids_the_newer_session_wins(session: Session) -> None:
    register(session, NameClaim("ours", ""))
    assert register(session, NameClaim("ours", ""), session_id="second", now=2.0) == "first"


def test_without_a_boot_id_the_name_of_a_present_worker_is_refused(session: Session) -> None:
    register(session, NameClaim(None, "boot-1"))
    with pytest.raises(NameInUse):
        register(session, NameClaim(None, ""), session_id="second", now=2.0)
    assert workers.heartbeat(session, WorkerSession("board", "first", WorkerState.READY), 2.0)
    assert register(session, NameClaim(None, ""), session_id="second", now=2 * LATER) == "first"


def test_a_heartbeat_requires_the_sessions_token(session: Session) -> None:
    register(session, OURS)
    seen = workers.get(session, "board").last_seen_at
    with pytest.raises(NameTaken):
        workers.heartbeat(
            session, WorkerSession("board", "first", WorkerState.OFFLINE, claim=NameClaim("theirs")), 2.0
        )
    assert workers.get(session, "board").last_seen_at == seen
    for token_id in ("ours", None):  # None: the bootstrap token may use every name
        assert workers.heartbeat(
            session, WorkerSession("board", "first", WorkerState.READY, claim=NameClaim(token_id)), 2.0
        )
    assert not workers.heartbeat(
        session, WorkerSession("board", "other", WorkerState.READY, claim=NameClaim("ours")), 2.0
    )
    assert not workers.heartbeat(
        session, WorkerSession("elsewhere", "first", WorkerState.READY, claim=NameClaim("ours")), 2.0
    )


@pytest.mark.parametrize("end", [revoke, expire])
def test_a_session_continues_with_a_new_token_when_the_old_token_ends(
    session: Session, end: Callable[[Session], float]
) -> None:
    register(session, OURS)
    now = end(session)
    access.add_token(session, Token("new", "new", frozenset({Scope.WORKER}), 0.0, None), "digest new")
    assert workers.heartbeat(
        session, WorkerSession("board", "first", WorkerState.READY, claim=NameClaim("new")), now
    )
    assert workers.heartbeat(
        session, WorkerSession("board", "first", WorkerState.READY, claim=NameClaim("new")), now
    )
    with pytest.raises(NameTaken):
        workers.heartbeat(
            session, WorkerSession("board", "first", WorkerState.READY, claim=NameClaim("theirs")), now
        )


def test_a_session_id_of_another_worker_is_recognized(session: Session) -> None:
    """Leases name a session, so its id would let another worker report for them."""
    register(session, OURS)
    assert workers.has_other_session(session, "neighbour", "first")
    assert not workers.has_other_session(session, "board", "first")


def test_an_evicted_worker_does_not_come_back_under_another_name(session: Session) -> None:
    register(session, OURS)
    register(session, NameClaim("ours", "boot-3"), name="neighbour", session_id="its")
    register(session, NameClaim(None, "boot-4"), name="nobodys", session_id="another")
    leases.evict(session, "board", 2.0)
    for name in ("renamed", "nobodys"):
        with pytest.raises(NameTaken, match="worker board of this token is evicted"):
            register(session, OURS, name=name, session_id="second", now=LATER)
    register(session, NameClaim("ours", "boot-3"), name="neighbour", session_id="restarted", now=3.0)
    register(session, THEIRS, name="another's", session_id="s", now=3.0)
    workers.set_desired_state(session, "board", DesiredState.WORK)
    register(session, OURS, name="renamed", session_id="second", now=LATER)

"""Allow a job to measure a program again."""

from collections.abc import Callable

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_KEY = ["job_id", "workload_hash", "trace_sha"]


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        _anew(_change)
    else:
        _change()


def downgrade() -> None:
    repeats = "SELECT count(*) FROM trials WHERE trials.job_id = jobs.id AND repeat > 0"
    op.execute(f"UPDATE jobs SET trials_issued = trials_issued - ({repeats})")
    op.execute(f"UPDATE jobs SET trials_done = trials_done - ({repeats} AND trials.state = 'done')")
    op.execute("DELETE FROM libraries WHERE trial_id IN (SELECT id FROM trials WHERE repeat > 0)")
    op.execute("DELETE FROM trials WHERE repeat > 0")
    if op.get_bind().dialect.name == "sqlite":
        _anew(_change_back)
    else:
        _change_back()


def _anew(change: Callable[[], None]) -> None:
    """Recreate the table, as SQLite requires. Rows that refer to it are deleted, so builders build again. Ids
    that were used must not be assigned again."""
    op.execute("DELETE FROM libraries")
    op.execute("UPDATE trials SET library_sha = NULL")
    last = op.get_bind().scalar(sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'trials'"))
    change()
    op.execute("DELETE FROM sqlite_sequence WHERE name = 'trials'")
    op.execute(f"INSERT INTO sqlite_sequence (name, seq) VALUES ('trials', {int(last or 0)})")


def _change() -> None:
    with op.batch_alter_table("trials", table_kwargs={"sqlite_autoincrement": True}) as trials:
        trials.add_column(sa.Column("repeat", sa.Integer(), nullable=False, server_default="0"))
        trials.drop_constraint(_name(_KEY), type_="unique")
        trials.create_unique_constraint(_name([*_KEY, "repeat"]), [*_KEY, "repeat"])


def _change_back() -> None:
    with op.batch_alter_table("trials", table_kwargs={"sqlite_autoincrement": True}) as trials:
        trials.drop_constraint(_name([*_KEY, "repeat"]), type_="unique")
        trials.create_unique_constraint(_name(_KEY), _KEY)
        trials.drop_column("repeat")


def _name(columns: list[str]) -> str:
    return "_".join(["uq_trials", *columns])

"""Events are found by kind; of the events of progress, a job keeps the last."""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_index("ix_events_kind", "events", ["job_id", "kind", "id"])
    last = "SELECT max(id) FROM events WHERE kind = 'progress' GROUP BY job_id"
    op.execute(f"DELETE FROM events WHERE kind = 'progress' AND id NOT IN ({last})")


def downgrade() -> None:
    op.drop_index("ix_events_kind", "events")

"""Index events by kind, and keep only the last "progress" event of each job."""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_index("ix_events_kind", "events", ["job_id", "kind", "id"])
    last = "SELECT max(id) FROM events WHERE kind = 'progress' GROUP BY job_id"
    op.execute(f"DELETE FROM events WHERE kind = 'progress' AND id NOT IN ({last})")


def downgrade() -> None:
    op.drop_index("ix_events_kind", "events")

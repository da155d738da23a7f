"""Rename columns, and the table of TVMScripts, to the names that the code uses."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"

RENAMED = (
    ("workers", "wanted", "desired_state"),
    ("workers", "machine", "boot_id"),
    ("device_classes", "machine", "platform"),
    ("builders", "machine", "platform"),
    ("jobs", "untuned_secs", "untuned_s"),
    ("jobs", "tuned_secs", "tuned_s"),
    ("trials", "run_secs", "run_s"),
    ("trials", "build_secs", "build_s"),
    ("module_runs", "run_secs", "run_s"),
    ("module_runs", "build_secs", "build_s"),
    ("records", "run_secs", "run_s"),
    ("cost_models", "train_secs", "train_s"),
)


def upgrade() -> None:
    for table, old, new in RENAMED:
        op.alter_column(table, old, new_column_name=new)
    _move("listings", "tvmscripts")


def downgrade() -> None:
    for table, old, new in RENAMED:
        op.alter_column(table, new, new_column_name=old)
    _move("tvmscripts", "listings")


def _move(old: str, new: str) -> None:
    """Move the rows of a table to a new one, whose constraints have the new name."""
    op.create_table(
        new,
        sa.Column(
            "workload_hash",
            sa.Text(),
            sa.ForeignKey("workloads.hash", name=f"fk_{new}_workload_hash"),
            primary_key=True,
        ),
        sa.Column("trace_sha", sa.Text(), primary_key=True),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("decisions", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("workload_hash", "trace_sha", name=f"pk_{new}"),
    )
    op.execute(f"INSERT INTO {new} SELECT workload_hash, trace_sha, text, decisions FROM {old}")
    op.drop_table(old)

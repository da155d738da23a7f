"""Add variants of tasks, and the option of jobs to exclude them."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("variant", sa.Text(), nullable=False, server_default=""))
    op.add_column("tasks", sa.Column("variant_of", sa.Text(), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("exact", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    # An older release would compile both the variant and its original.
    unknown = "a variant, which this release does not know"
    op.execute(f"UPDATE tasks SET covered = false, reason = '{unknown}' WHERE variant <> ''")
    op.drop_column("jobs", "exact")
    op.drop_column("tasks", "variant_of")
    op.drop_column("tasks", "variant")

"""Add readings of the schedulers' clocks."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.create_table(
        "clocks",
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("ahead_s", sa.Double(), nullable=False),
        sa.Column("jumped_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("boot_id", name="pk_clocks"),
    )


def downgrade() -> None:
    op.drop_table("clocks")

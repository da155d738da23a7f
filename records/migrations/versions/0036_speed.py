"""Add the speed of the device to what was measured on it."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"


def upgrade() -> None:
    for table in ("trials", "module_runs", "jobs"):
        op.add_column(table, sa.Column("speed", sa.Double(), nullable=True))


def downgrade() -> None:
    for table in ("jobs", "module_runs", "trials"):
        op.drop_column(table, "speed")

"""Add the footprints of whole models: load time, memory and energy."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"


def upgrade() -> None:
    for table in ("module_runs", "jobs"):
        op.add_column(table, sa.Column("footprint", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    for table in ("jobs", "module_runs"):
        op.drop_column(table, "footprint")

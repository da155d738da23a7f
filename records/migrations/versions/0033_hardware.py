"""Add the cores or the GPU that a worker measures on."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    op.add_column("workers", sa.Column("hardware", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("workers", "hardware")

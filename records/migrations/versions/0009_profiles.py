"""Add profiles of device classes, and requests to calibrate."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("device_classes", sa.Column("profile", sa.Text(), nullable=True))
    op.add_column("workers", sa.Column("calibrate", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    op.drop_column("workers", "calibrate")
    op.drop_column("device_classes", "profile")

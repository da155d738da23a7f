"""Add reservations of workers, and who submitted each job."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    op.add_column("workers", sa.Column("reserved_for", sa.Text(), nullable=True))
    op.add_column("workers", sa.Column("reserved_until", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("submitted_by", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("jobs", "submitted_by")
    op.drop_column("workers", "reserved_until")
    op.drop_column("workers", "reserved_for")

"""Bind names of workers to tokens, and store the boot id of the machine."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("workers", sa.Column("token_id", sa.Text(), nullable=True))
    op.add_column("workers", sa.Column("machine", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("workers", "machine")
    op.drop_column("workers", "token_id")

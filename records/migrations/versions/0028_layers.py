"""Add the names of the model's nodes that tasks come from."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("layer", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("tasks", "layer")

"""Keep quantized forms of models with weights of 7 bits beside those of 8 bits."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"

KEY, NAME = ["model_sha", "quantize", "calibration"], "pk_quantized_models"


def upgrade() -> None:
    with op.batch_alter_table("quantized_models") as forms:
        forms.drop_constraint(NAME, type_="primary")
        forms.add_column(sa.Column("narrow", sa.Boolean(), nullable=False, server_default=sa.false()))
        forms.create_primary_key(NAME, [*KEY, "narrow"])
    # Stored forms keep serving all devices, so that finished jobs keep their reports.
    op.execute(
        "INSERT INTO quantized_models (model_sha, quantize, calibration, narrow, sha, accuracy) "
        "SELECT model_sha, quantize, calibration, TRUE, sha, accuracy FROM quantized_models "
        "WHERE quantize = 'int8' AND calibration != ''"
    )


def downgrade() -> None:
    op.execute("DELETE FROM quantized_models WHERE narrow")
    with op.batch_alter_table("quantized_models") as forms:
        forms.drop_constraint(NAME, type_="primary")
        forms.drop_column("narrow")
        forms.create_primary_key(NAME, KEY)

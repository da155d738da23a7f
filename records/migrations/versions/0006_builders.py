"""Add builders, and the libraries that they compile."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("device_classes", sa.Column("machine", sa.Text(), nullable=True))
    op.add_column("device_classes", sa.Column("cores", sa.Integer(), nullable=False, server_default="1"))
    op.add_column("device_classes", sa.Column("toolchain", sa.Text(), nullable=False, server_default=""))
    _describe_classes(op.get_bind())
    op.add_column("jobs", sa.Column("build", sa.Text(), nullable=False, server_default="auto"))
    op.add_column("leases", sa.Column("build", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("trials", sa.Column("library_sha", sa.Text(), nullable=True))
    op.create_table(
        "builders",
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("own", sa.Boolean(), nullable=False),
        sa.Column("cores", sa.Integer(), nullable=False),
        sa.Column("toolchain", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["worker_id"], ["workers.id"], name="fk_builders_worker_id"),
        sa.PrimaryKeyConstraint("worker_id", "machine", name="pk_builders"),
    )
    op.create_table(
        "libraries",
        sa.Column("trial_id", _ROW_ID, autoincrement=False, nullable=False),
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["trials.id"], name="fk_libraries_trial_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("trial_id", name="pk_libraries"),
    )
    op.create_index("ix_libraries_sha", "libraries", ["sha"])


def _describe_classes(connection: sa.Connection) -> None:
    """Fill the new columns of stored device classes, because a class is stored only once."""
    names = ("key", "device", "machine", "cores", "toolchain")
    classes = sa.table("device_classes", *(sa.column(name) for name in names))
    for key, text in connection.execute(sa.select(classes.c.key, classes.c.device)).all():
        device = json.loads(text)
        machine = None if device.get("gpu") else device["triple"].partition("-")[0]
        facts = {"machine": machine, "cores": device["cores"], "toolchain": device["toolchain"]}
        connection.execute(sa.update(classes).where(classes.c.key == key).values(facts))


def downgrade() -> None:
    op.drop_table("libraries")
    op.drop_table("builders")
    op.drop_column("trials", "library_sha")
    op.drop_column("leases", "build")
    op.drop_column("jobs", "build")
    for column in ("toolchain", "cores", "machine"):
        op.drop_column("device_classes", column)

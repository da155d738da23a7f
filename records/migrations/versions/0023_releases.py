"""Add versions of artifacts, and releases."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("artifact_version", sa.Integer(), nullable=True))
    op.create_table(
        "artifact_counts",
        sa.Column("model_sha", sa.Text(), nullable=False),
        sa.Column("device_class", sa.Text(), nullable=False),
        sa.Column("last_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("model_sha", "device_class", name="pk_artifact_counts"),
    )
    op.create_table(
        "releases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("device_class", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("set_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["device_class"], ["device_classes.key"], name="fk_releases_device_class"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_releases_job_id"),
        sa.PrimaryKeyConstraint("name", "device_class", name="pk_releases"),
    )
    op.create_index("ix_releases_job_id", "releases", ["job_id"])
    # Number existing artifacts in the order in which they were published.
    op.execute(
        """
        UPDATE jobs SET artifact_version = ranked.version FROM (
            SELECT id, row_number() OVER (
                PARTITION BY model_sha, device_class ORDER BY finished_at, id
            ) AS version
            FROM jobs WHERE artifact_sha IS NOT NULL
        ) AS ranked WHERE jobs.id = ranked.id
        """
    )
    op.execute(
        """
        INSERT INTO artifact_counts (model_sha, device_class, last_version)
        SELECT model_sha, coalesce(device_class, ''), max(artifact_version)
        FROM jobs WHERE artifact_version IS NOT NULL GROUP BY model_sha, coalesce(device_class, '')
        """
    )


def downgrade() -> None:
    op.drop_index("ix_releases_job_id", "releases")
    op.drop_table("releases")
    op.drop_table("artifact_counts")
    op.drop_column("jobs", "artifact_version")

"""The schema's history, one Alembic revision per file in `versions`.

To change the schema, change `records/storage/tables.py` and add a revision. The test of the migrations prints
what is still missing.
"""

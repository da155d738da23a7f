"""The steps of a job, as Celery tasks: intake, rounds, publishing."""

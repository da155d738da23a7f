"""The steps of a job, run by Celery tasks: intake, rounds of the search, publishing."""

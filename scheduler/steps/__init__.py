"""The steps of a job, taken by Celery tasks: intake, rounds of the search, publishing."""

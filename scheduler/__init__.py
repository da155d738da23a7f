"""The tuning process: Celery tasks run the short steps of jobs, such as rounds of the search."""

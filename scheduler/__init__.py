"""The tuning process: rounds of the search, driven by short steps that Celery wakes."""

"""The dashboard: the page that runs its modules, their files, and a job's report in one file."""

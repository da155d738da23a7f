"""The dashboard: its page, its modules and files, and a job's report in one file."""

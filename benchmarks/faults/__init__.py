"""Faults that really happen to a running service, and what they cost the job that ran meanwhile."""

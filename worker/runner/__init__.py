"""Builds, verifies and times candidates in a child process."""

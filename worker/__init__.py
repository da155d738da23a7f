"""The agent on a device: leases candidates, has a child process build, verify and time them, reports."""

"""The worker of a device: leases candidates, has a child process build, verify and time them, and reports."""

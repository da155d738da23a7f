"""The worker of a device: it leases candidates, builds, verifies and times them in a child process, and sends
the results."""

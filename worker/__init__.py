"""The worker of a device: leases candidates, builds, verifies and times them in a child, and reports."""

"""Workers: their devices, the leases that they hold, what they build and report."""

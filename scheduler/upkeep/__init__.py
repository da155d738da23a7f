"""The upkeep of the service by sweeps: lapsed leases, idle builders, unused files, tokens that expire."""

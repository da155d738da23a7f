"""The upkeep of the service, done by sweeps: lapsed leases, builders that build nothing, unused files."""

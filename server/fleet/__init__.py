"""The gRPC service for workers: sessions, leases, results and files."""

"""The service's front: HTTP for people and programs, gRPC for workers. No heavy work happens here."""

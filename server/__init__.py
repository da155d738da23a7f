"""The server: HTTP for people and programs, gRPC for workers. Heavy work is left to the scheduler."""

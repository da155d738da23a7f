"""The wire contract between the service and its workers: `fleet.proto` is its specification."""

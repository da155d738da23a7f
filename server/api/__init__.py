"""The HTTP API: routes, with the bodies of their requests and responses."""

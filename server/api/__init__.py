"""The HTTP API: routes, their bodies, and every error as a problem document."""

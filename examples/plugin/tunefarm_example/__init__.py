"""An example of a plug-in: docs/plugins.md explains it."""

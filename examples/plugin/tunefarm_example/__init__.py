"""An example plug-in, explained in docs/plugins.md."""

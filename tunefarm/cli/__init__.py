"""The `tunefarm` command."""

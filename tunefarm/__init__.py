"""What people import and type: the client, the `tunefarm` command and the embedded stack."""

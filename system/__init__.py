"""The environment of every process: settings, commands, TLS, logs, the kernel."""

"""Things that every process needs from its surroundings: settings, commands, TLS, the kernel."""

"""Things that every process needs from the operating system and its environment: settings, TLS, parents."""

"""Programs, as whole populations: their values, loops and resources, and which of them are valid."""

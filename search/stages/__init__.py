"""What each kind of stage means: its variables, which of their values are valid, and what it costs."""

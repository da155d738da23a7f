"""Who calls, whether they may, how often, and what is written down of it."""

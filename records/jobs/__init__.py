"""Jobs with their tasks, trials and events, and the queue in which they share devices."""

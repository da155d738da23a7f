"""The planning of a round: the budget, what is known of each task, and the batch of trials."""

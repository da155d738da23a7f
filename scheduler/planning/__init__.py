"""Plan a round: the budget, the history of each task, and the batch of trials."""

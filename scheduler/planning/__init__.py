"""What a round measures: what is known of each task, and the batch that follows from it."""

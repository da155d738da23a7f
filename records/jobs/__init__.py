"""Jobs: what was asked for, the tasks and trials that they are made of, and what happens to them."""

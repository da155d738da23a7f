"""What is done now and then, whatever the jobs are: garbage collection, builders that don't build."""

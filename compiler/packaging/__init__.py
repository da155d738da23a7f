"""What is compiled as files: libraries for this machine and others, artifacts, databases of schedules."""

"""Installation of workers: a shell script, and the archive that it installs from."""

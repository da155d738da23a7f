"""Make a device a worker: a script to read first, and an archive that it installs from."""

"""Build, verify and time candidates and whole models; measure the profiles of devices."""

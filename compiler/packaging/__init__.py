"""Compiled code in files: shared libraries, artifacts of whole models, MetaSchedule databases."""

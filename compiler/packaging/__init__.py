"""Compiled code as files: shared libraries, artifacts of whole models, MetaSchedule databases."""

"""Schedules between a service and MetaSchedule's two database files. Needs TVM."""

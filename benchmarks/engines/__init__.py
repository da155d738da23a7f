"""Search engines: ours, and MetaSchedule in three ways."""

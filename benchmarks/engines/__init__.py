"""Who searches: ours, and MetaSchedule in three ways."""

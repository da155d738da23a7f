"""Our space of programs against MetaSchedule's."""

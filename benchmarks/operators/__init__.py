"""Our search against MetaSchedule's and against libraries, an operator at a time."""

"""Compare our search with MetaSchedule's and with libraries, one operator at a time."""

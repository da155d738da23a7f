"""The shared database. No other package of tunefarm uses SQL.

Every function takes the caller's session; `with database.begin() as session` is a transaction. Times are
seconds since the epoch, and are passed in, like ids.

The tables are locked in one order, so that no two transactions wait for each other: workers, leases, jobs,
trials, shares.
"""

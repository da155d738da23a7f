"""The shared database: the only place in tunefarm that speaks SQL.

Every function takes the caller's session: `with database.begin() as session` is the transaction. Times are
seconds since the epoch and are passed in, like ids.
"""

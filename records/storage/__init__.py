"""The database itself: tables, transactions, files, and its failures in words for people."""

"""The database itself: its tables, transactions, blobs, and errors."""

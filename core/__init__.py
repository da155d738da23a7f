"""The dataclasses and enums that all packages share. Nothing here opens a file or a connection.

Outlines of files are read from the file objects that callers pass.
"""

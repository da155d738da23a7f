"""The dataclasses and enums that all packages share. No module here opens a file or a connection.

Modules that read outlines of files get file objects from their callers.
"""

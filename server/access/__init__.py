"""Authentication, scopes and rate limits of callers, and the audit log of their actions."""

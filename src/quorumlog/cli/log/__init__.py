"""Commands of a running log: used, looked at, and managed."""

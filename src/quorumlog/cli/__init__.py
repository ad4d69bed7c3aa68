"""The command line: one file a command, `main` puts them together.

A command parses its options, calls one function of the packages below and prints; it decides nothing.
Errors that a person can act on end as one line on standard error (`output.ReportingGroup`).
"""

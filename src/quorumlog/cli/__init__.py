"""The command line: one file a command, `main` puts them together.

A command parses its options, calls one function of the packages below and prints; it decides nothing.
Errors that a person can act on end as one line on standard error (`output.ReportingGroup`).

Read in this order: `main`, `options` and `output` (what commands share), then the rooms, which are those
of the help: `run`, `use`, `look`, and `measure` for `quorumlog bench`.
"""

"""The command line: one file a command, `main` puts them together.

A command parses its options, calls one function of the packages below and prints; it decides nothing.
What it calls it imports when it runs, so that help, completion and a slip cost a moment; what reads
better whole has a file of its own beside it. Errors that a person can act on end as one line on standard
error (`output.ReportingGroup`).

Read in this order: `interrupts` (signals, from the first moment on), `main`, `options`, `output` (what
commands share), then the rooms, which are those of the help: `run`, `use`, `look`, and `measure` for
`quorumlog bench`.
"""

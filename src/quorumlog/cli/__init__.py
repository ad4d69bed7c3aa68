"""The command line: one file a command, `main` puts them together.

A command parses its options, calls one function of the packages below and prints; it decides nothing.
What it calls it imports when it runs, so that help, completion and a slip cost a moment.

Read in this order: `interrupts` (signals, from the first moment on), `main`, `options`, `output` (what
commands share), then the rooms: `run`, `use`, `manage`, `carry`, `pipeline`, `look`, `measure` for
`quorumlog bench`, `broker` for `quorumlog broker`, and `kv` for `quorumlog kv`.
"""

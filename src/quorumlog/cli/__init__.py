"""The command line: one file a command, `main` puts them together.

A command parses its options, calls one function of the packages below and prints; it decides nothing.
What it calls it imports when it runs, so that help, completion and a slip cost a moment.

Read in this order: `interrupts` (signals, from the first moment on), `main`, `options`, `output` (what
commands share), `certificates` (a small CA), then `run`, `log`, `carry`, `pipeline`, `look`, `bench`
with `bench_tables`, and `broker`, `kafka` and `kv`, each for the command of its name.
"""

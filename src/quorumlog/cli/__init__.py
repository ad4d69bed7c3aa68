"""The command line: one file a command, `main` puts them together.

A command parses its options, calls one function of the packages below and prints; it decides nothing. It
imports that function when it runs, so that help, completion and usage errors are fast.

Read in this order: `interrupts` (signals, from the first moment on), `main`, `options`, `output` (common
output), `certificates` (a small CA), then `run`, `log`, `carry`, `pipeline`, `look`, `bench` with
`bench_tables`, and `broker`, `kafka` and `kv`, each for the command of its name.
"""

"""The same LedgerNode and the same store in virtual time, on a simulated network and disk.

One seed decides a run: who fails when, which bytes a power loss leaves, in which order messages
arrive. `run.py` carries one out, `checkers/` watch it, `many_runs.py` carries out many.
"""

"""The same LedgerNode and the same store in virtual time, on a simulated network and disk.

One seed decides a life: who fails when, which bytes a power loss leaves, in which order messages
arrive. `life.py` runs one, `checkers/` watch it, `campaign.py` runs many.
"""

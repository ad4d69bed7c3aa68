"""Producers over brokers on a replicated log, whose masters are killed and stopped:
`python -m nemesis.brokers`.

Read in this order: `consumers` (a group beside them), `__main__` (the command, the faults and what must
hold).
"""

"""Producers over brokers on a replicated log, whose masters are killed and stopped:
`python -m nemesis.brokers`.

Read in this order: `consumers` (a group beside them), then the command, with the faults and what must
hold.
"""

"""Unmodified Patroni with two nodes of PostgreSQL, whose etcd is the key-value store:
python -m nemesis.patroni.

Read in this order: `nodes` (Patroni and PostgreSQL as processes), `writing` (who takes writes when),
`run` (what is killed, and what must follow).
"""

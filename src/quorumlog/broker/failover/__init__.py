"""Failover by a coordinator: who leads, for how long, and who must have what is acknowledged.

Read in this order: `coordinator` (what stands outside), `failover_steps`, `in_sync_members`,
`failover_rules`, `failover_service` (the rules on an event loop).
"""

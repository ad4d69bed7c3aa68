"""Groups of brokers with a coordinator in virtual time.

Read in this order: `world`, `sim_registers`, `sim_broker`, `promises`, `failover_run`.
"""

"""What a member does for clients of the store, beside applying commands. Values in, values out; time is
an input, so that the simulator runs the same.

Read in this order: `sessions` (who asks), `lease_clock` (commands of many clients as one append; when
leases end, on the leader), `watch_hub` (who hears of which changes), `needs` (which right each
request takes), `service` (one request after the other).
"""

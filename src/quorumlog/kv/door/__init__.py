"""The store's own port on a member, and members that an application embeds.

Read in this order: `kv_door` (sockets and a clock around the service), `embedded` (KeyValueStore).
"""

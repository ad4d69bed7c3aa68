"""quorumlog broker: a message store as a server, used, and looked at.

Read in this order: `broker_options`, `message_rows`, `brokers_table`, `failover`, `serve`,
`serve_dledger`, `dev`, `use`, `consuming` (topics and groups), `replicas`, `look`, `takeover`,
`broker_app`.
"""

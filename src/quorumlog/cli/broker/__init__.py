"""quorumlog broker: a message store as a server, used, and looked at.

Read in this order: `broker_options`, `message_rows`, `serve`, `serve_dledger`, `dev`, `use`, `topics`,
`groups`, `consume`, `look`, `takeover`, `broker_app`.
"""

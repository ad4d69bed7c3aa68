"""Commands that run members.

Read in this order: `choices`, `toml_config` and `state_machines` (what a member is told), `serve` with
`serving_member` (one member of one or more groups), `dev` (a whole cluster in one terminal).
"""

"""What must hold while faults strike, a promise each; `promises` is the list that users look on with.

Read in this order: `view` (what a checker sees), `checker` (what it is told), `committed_log`,
`one_leader`, `log_matching`, `same_machines`, `durable_entries`, `committed_entries`, `convergence`,
`promises`.
"""

"""Who works with a simulated cluster: `clients` append, `producers` do it in sessions, `readers` have
names, `fresh_read_work` is of whatever member, `member_work` changes its members, and
`step_over_work` has machines leave commands out."""

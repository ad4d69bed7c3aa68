"""Who works with a simulated cluster: `producers` append in sessions,
`readers` have names, `fresh_read_work` is of whatever member, `member_work` changes its members, and
`step_over_work` has machines leave commands out."""

"""Who works with a simulated cluster: `clients` append and read, `producers` do it in sessions,
`readers` have names, `fresh_read_work` is of whatever member, and `member_work` changes its members."""

"""Who works with a simulated cluster: `clients` append and read, `producers` do it in sessions, and
`member_work` changes its members."""

"""Who works with a simulated cluster: `clients` append and read, `producers` do it in sessions,
`readers` have names, and `member_work` changes its members."""

"""Who works with a simulated cluster: `clients` append and read, `readers` go on by name, `member_work`
changes its members."""

"""Who works with a simulated cluster: `clients` append and read, `producers` append under numbers of
their own, `member_work` changes its members."""

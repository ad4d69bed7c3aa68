"""Who works with a simulated cluster: `clients` append and read, `member_work` changes its members."""

"""State machines of a group, as clients reach them: `machine_handles`."""

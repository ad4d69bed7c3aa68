"""What runs in another interpreter than the benchmark's: it imports nothing of it."""

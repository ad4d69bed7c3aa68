"""A broker beside RocketMQ's Java broker, in one run (`make bench-broker`)."""

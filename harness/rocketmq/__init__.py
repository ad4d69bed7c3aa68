"""RocketMQ's Java classes, fetched from Maven Central by Maven and kept outside the repository."""

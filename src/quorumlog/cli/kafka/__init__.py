"""The commands about topics and consumer groups of Kafka's clients."""

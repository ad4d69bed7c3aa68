"""Pipelines beside writers, while members and drivers are killed and old segments go."""

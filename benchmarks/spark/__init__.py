"""The log on Spark, measured; see `__main__`."""

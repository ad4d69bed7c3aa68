"""The key-value store beside etcd: python -m benchmarks.kv."""

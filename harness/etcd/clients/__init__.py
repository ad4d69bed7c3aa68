"""Programs with published clients of etcd, each run by the Python of an environment of its own."""

"""What the types of the public API promise: `make check` has mypy check this folder, pytest runs it."""

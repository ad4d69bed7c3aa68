"""The version of this installation; `pyproject.toml` reads it from here."""

VERSION = "0.1.0"

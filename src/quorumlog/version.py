"""The version of this installation; `pyproject.toml` reads it from here."""

VERSION = "0.2.0.dev0"

IS_COMPILED = not __file__.endswith((".py", ".pyc"))
"""This module is compiled together with the append path (`make wheel`), or neither is."""

DESCRIPTION = f"quorumlog {VERSION}" + (", compiled" if IS_COMPILED else "")

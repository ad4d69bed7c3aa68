"""TLS for all that a program starts: the members that it runs, and clients in all its processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quorumlog.cli import certificates
from quorumlog.net.tls import ClientTls, clients_use

VARIABLE = "QUORUMLOG_HARNESS_TLS"
"""Directory of a CA, for this process and those that it starts."""
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "localhost")


def encrypt(directory: Path) -> None:
    """From here on."""
    certificates.init(directory, "harness")
    os.environ[VARIABLE] = str(directory)


def options_of(member_id: str) -> str:
    """For its TOML file, at the end; empty: it is plain."""
    if VARIABLE not in os.environ:
        return ""
    directory = Path(os.environ[VARIABLE])
    cert = directory / f"member-{member_id}.crt"
    if not cert.exists():
        certificates.member(directory, member_id, HOSTS)
    return f'[tls]\ncert = "{cert}"\nkey = "{cert.with_suffix(".key")}"\nca = "{directory / "ca.crt"}"\n'


@contextmanager
def encrypted_clients() -> Iterator[None]:
    """Of this process."""
    directory = os.environ.get(VARIABLE)
    with clients_use(None if directory is None else ClientTls(f"{directory}/ca.crt")):
        yield

"""Recognizing other software on a port."""

from __future__ import annotations

from quorumlog.errors import ProtocolViolation, WrongPort

_SPOKEN = (
    ((b"HTTP", b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"PRI ", b"CONN"), "HTTP"),
    ((b"\x16\x03", b"\x15\x03"), "TLS"),
    ((b"SSH-",), "SSH"),
    ((b"-ERR", b"*1\r\n", b"*2\r\n", b"*3\r\n", b"PING"), "Redis's protocol"),
    ((b"AMQP",), "AMQP"),
    ((b"220 ", b"220-"), "SMTP or FTP"),
)


class OtherSoftware(ProtocolViolation):
    """No frame begins like that."""

    def __init__(self, received: bytes) -> None:
        """`received`: four bytes at least."""
        self.received = received
        first = received[:4]
        named = (name for begins, name in _SPOKEN if first.startswith(begins))
        self.spoken = next(named, f"bytes that begin with {first!r}")
        super().__init__(f"a frame begins with {first!r}: this is {self.spoken}, not quorumlog")

    def at(self, address: str) -> WrongPort:
        """The error text of a client that has dialled this address."""
        if self.spoken == "TLS":
            return WrongPort(f"{address} speaks TLS: name the CA to trust with --tls-ca")
        return WrongPort(f"{address} answers with {self.spoken}, not quorumlog")

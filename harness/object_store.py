"""ObjectStore: moto's S3 on loopback, behind a proxy that cuts connections and repeats requests."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self

Fault = Literal["pass", "refuse", "deny", "cut", "repeat"]
"""What becomes of a request.

refuse   the connection ends, and nobody has seen it
deny     403, with what a store tells of a signature that is wrong
cut      it is carried out, and the connection ends in the place of the answer
repeat   it is carried out twice, and the second answer is told
"""
Rule = Callable[[str, str], Fault]
"""Of method and path."""
_BY_HOP = {"connection", "transfer-encoding", "date", "server", "expect"}


_DENIAL = (
    b"<Error><Code>SignatureDoesNotMatch</Code><Message>The signature is another one.</Message>"
    b"<StringToSign>AWS4-HMAC-SHA256 what-was-signed</StringToSign></Error>"
)


def no_fault(method: str, path: str) -> Fault:
    return "pass"


class ObjectStore:
    """`with ObjectStore("bucket") as store:`; `rule` may be changed at any time."""

    def __init__(self, bucket: str) -> None:
        from moto.server import ThreadedMotoServer

        self.rule: Rule = no_fault
        self.dropped: set[str] = set()
        """Names of headers, in small letters, that the store does not get to see."""
        self.bucket = bucket
        self._moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._proxy = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._proxy.daemon_threads = True
        self._thread = threading.Thread(target=self._proxy.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._moto.start()
        self._thread.start()
        self.ask("PUT", f"/{self.bucket}")
        return self

    def __exit__(self, *reason: object) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()
        self._moto.stop()

    @property
    def environment(self) -> dict[str, str]:
        host, port = self._proxy.server_address[:2]
        return {
            "AWS_ENDPOINT_URL": f"http://{host!s}:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "a-secret-that-is-never-told",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Of the store itself: status, headers, content."""
        host, port = self._moto.get_host_and_port()
        connection = http.client.HTTPConnection(host, port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self._body()
                fault = store.rule(self.command, self.path)
                if fault == "refuse":
                    self.close_connection = True
                    return
                if fault == "deny":
                    self.send_response_only(403)
                    self.send_header("Content-Length", str(len(_DENIAL)))
                    self.end_headers()
                    self.wfile.write(_DENIAL)
                    return
                given = [(n, v) for n, v in self.headers.items() if n.lower() not in store.dropped]
                headers = {name: value for name, value in given if name.lower() not in _BY_HOP}
                status, answered, content = store.ask(self.command, self.path, body, headers)
                if fault == "repeat":
                    status, answered, content = store.ask(self.command, self.path, body, headers)
                if fault == "cut":
                    self.close_connection = True
                    return
                self.send_response_only(status)
                for name, value in answered:
                    if name.lower() not in _BY_HOP:
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                pieces = []
                while size := int(self.rfile.readline().partition(b";")[0], 16):
                    pieces.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(pieces)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Nobody reads it."""

        return Handler

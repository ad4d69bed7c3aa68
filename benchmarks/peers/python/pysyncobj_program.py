"""A member of PySyncObj, and the load client that tells the leader what to do.

PySyncObj has no clients: the program that embeds it calls a replicated method. So the writers are chains
of callbacks inside the leader, and the load client hands over the flags and prints what comes back.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import threading
import time
from typing import Any, TextIO

from pysyncobj import SyncObj, SyncObjConf, replicated

READY_TIMEOUT_S = 60.0


class Log(SyncObj):  # type: ignore[misc]
    """The journal has the records; the object that they build is their number."""

    def __init__(self, address: str, partners: list[str], conf: SyncObjConf) -> None:
        super().__init__(address, partners, conf)
        self.count = 0

    @replicated  # type: ignore[untyped-decorator]
    def append(self, record: bytes) -> None:
        self.count += 1


class Load:
    """`writers` records under way, for `warm_up` and then for `seconds`."""

    def __init__(self, log: Log, flags: dict[str, Any]) -> None:
        self._log = log
        self._flags = flags
        self._body = os.urandom(flags["body_bytes"])
        self._latencies_ms: list[float] = []
        self._counting = False
        self._running = True
        self._failed: str | None = None

    def run(self, out: TextIO) -> None:
        for _ in range(self._flags["writers"] * self._flags["in_flight"]):
            self._call()
        time.sleep(self._flags["warm_up"])
        _print(out, {"event": "began"})
        began = time.perf_counter()
        self._counting = True
        time.sleep(self._flags["seconds"])
        self._counting = self._running = False
        seconds = time.perf_counter() - began
        if self._failed is not None:
            _print(out, {"error": self._failed})
            return
        latencies = sorted(self._latencies_ms)
        count = len(latencies)
        p50, p99 = (latencies[int(q * (count - 1))] if count else 0.0 for q in (0.50, 0.99))
        row = {"seconds": seconds, "operations": count, "records": count, "p50_ms": p50, "p99_ms": p99}
        _print(out, row)

    def _call(self) -> None:
        sent = time.perf_counter()
        self._log.append(self._body, callback=lambda _, error: self._called_back(sent, error))

    def _called_back(self, sent: float, error: int) -> None:
        if error:
            self._failed = f"PySyncObj's callback has error {error}"
        elif self._running:
            if self._counting:
                self._latencies_ms.append((time.perf_counter() - sent) * 1000)
            self._call()


def serve(addresses: list[str], number: int, control_port: int, journal: str, batching: bool) -> None:
    conf = SyncObjConf(journalFile=journal, appendEntriesUseBatch=batching)
    partners = [address for address in addresses if address != addresses[number]]
    log = Log(addresses[number], partners, conf)
    with socket.create_server(("127.0.0.1", control_port)) as listening:
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_answer, args=(log, connection), daemon=True).start()


def _answer(log: Log, connection: socket.socket) -> None:
    with connection, connection.makefile("r") as source, connection.makefile("w") as out:
        flags = json.loads(source.readline())
        leader = log._getLeader()
        if leader is None or not log.isReady():
            _print(out, {"error": "no leader"})
        elif leader.id != log.selfNode.id:
            _print(out, {"error": "not the leader"})
        elif flags["mode"] == "prepare":
            done = threading.Event()
            log.append(b"ready", callback=lambda *_: done.set())
            _print(out, {} if done.wait(READY_TIMEOUT_S) else {"error": "no answer"})
        else:
            Load(log, flags).run(out)


def ask(server: str, flags: dict[str, Any], out: TextIO) -> str | None:
    """Print what the member answers; returns its error instead, if that is what it answers."""
    host, _, port = server.partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(json.dumps(flags).encode() + b"\n")
        with connection.makefile("r") as source:
            for text in source:
                if error := json.loads(text).get("error"):
                    return str(error)
                if flags["mode"] == "run":
                    out.write(text)
                    out.flush()
            return None


def _print(out: TextIO, row: dict[str, Any]) -> None:
    out.write(json.dumps(row) + "\n")
    out.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    modes = parser.add_subparsers(dest="mode", required=True)
    member = modes.add_parser("serve")
    member.add_argument("addresses")
    member.add_argument("number", type=int)
    member.add_argument("control_port", type=int)
    member.add_argument("journal")
    member.add_argument("batching", choices=("batching", "single"))
    for mode in ("prepare", "run"):
        client = modes.add_parser(mode)
        client.add_argument("-servers", required=True)
        for flag in ("-writers", "-in-flight", "-batch", "-body-bytes"):
            client.add_argument(flag, type=int, default=1)
        for flag in ("-seconds", "-warm-up"):
            client.add_argument(flag, type=float, default=1.0)
    flags = vars(parser.parse_args())
    if flags["mode"] == "serve":
        addresses = flags["addresses"].split(",")
        batching = flags["batching"] == "batching"
        serve(addresses, flags["number"], flags["control_port"], flags["journal"], batching)
    deadline = time.monotonic() + READY_TIMEOUT_S
    error: str | None = None
    while flags["mode"] == "run" or time.monotonic() < deadline:
        for server in flags["servers"].split(","):
            try:
                error = ask(server, flags, sys.stdout)
            except ConnectionError as lost:
                error = str(lost)
            if error is None:
                return
        if flags["mode"] == "run":
            break
        time.sleep(0.2)
    sys.exit(error)


if __name__ == "__main__":
    main()

"""NameLookup: the addresses behind the name of a server, looked up at each dial, for they may move.

A resolver may be silent for minutes. The loop's executor has few threads and is the application's; so
each name has a thread for as long as it is looked up, and nothing is left of it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from contextlib import suppress


class NameLookup:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._under_way: dict[str, asyncio.Future[list[str] | Exception]] = {}
        """By name: whoever else asks for it meanwhile hears the same."""
        self.known: set[str] = set()
        """Addresses that were found, of members and of this machine."""

    async def addresses_of(self, host: str) -> list[str]:
        """Raises OSError, or UnicodeError for what can be no name."""
        with suppress(ValueError):
            address = str(ipaddress.ip_address(host))
            self.known.add(address)
            return [address]
        answer = self._under_way.get(host)
        if answer is None:
            answer = self._under_way[host] = self._loop.create_future()
            threading.Thread(target=self._ask, args=(host,), name="quorumlog-name", daemon=True).start()
        found = await asyncio.shield(answer)
        if isinstance(found, Exception):
            raise found
        self.known.update(found)
        return found

    def _ask(self, host: str) -> None:
        found: list[str] | Exception
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found = [str(address[0]) for _, _, _, _, address in answers]
        except (OSError, UnicodeError) as error:
            found = error
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._told, host, found)

    def _told(self, host: str, found: list[str] | Exception) -> None:
        self._under_way.pop(host).set_result(found)

"""LeaderCalls: forwards requests that only the leader can answer.

Some clients send CreateTopics to any member and do not look for the leader. The request is forwarded
unchanged, and the leader's answer is passed back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quorumlog.kafka.codec import API_VERSIONS, KafkaRequest, encoded_request
from quorumlog.net.limits import GREETING_BYTES
from quorumlog.net.tls import Tls

TIMEOUT_S = 10.0
MOST_CALLS = 16
"""Calls in flight; above that a client is asked to try again later."""
MOST_ANSWER_BYTES = 16 << 20


class LeaderCalls:
    def __init__(self, tls: Tls | None) -> None:
        """`tls`: of this member. Its certificate tells the leader that a member has checked the
        client's rights. None: its port is plain."""
        self._tls = tls
        self._calls: set[asyncio.Task[bytes | None]] = set()

    @property
    def shows_member(self) -> bool:
        return self._tls is not None

    def ask(
        self, host: str, port: int, request: KafkaRequest, done: Callable[[bytes | None], None]
    ) -> None:
        """`done` receives the leader's whole answer, size field included; None: no answer."""
        if len(self._calls) >= MOST_CALLS:
            done(None)
            return
        task = asyncio.get_running_loop().create_task(self._answer(host, port, request))
        self._calls.add(task)

        def over(task: asyncio.Task[bytes | None]) -> None:
            self._calls.discard(task)
            if not task.cancelled():
                done(task.result())

        task.add_done_callback(over)

    async def _answer(self, host: str, port: int, request: KafkaRequest) -> bytes | None:
        context = None if self._tls is None else self._tls.dialling
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host, port, ssl=context)
                try:
                    if len(request.data) > GREETING_BYTES:  # no first request may be so large
                        writer.write(encoded_request(API_VERSIONS, 0, 0, {}))
                        await _answer_of(reader)
                    writer.write(len(request.data).to_bytes(4, "big"))
                    writer.write(request.data)
                    return await _answer_of(reader)
                finally:
                    writer.close()
        except (OSError, EOFError, TimeoutError):
            return None

    def close(self) -> None:
        for task in self._calls:
            task.cancel()


async def _answer_of(reader: asyncio.StreamReader) -> bytes | None:
    """Raises OSError, EOFError."""
    size = await reader.readexactly(4)
    if int.from_bytes(size, "big") > MOST_ANSWER_BYTES:
        return None
    return size + await reader.readexactly(int.from_bytes(size, "big"))

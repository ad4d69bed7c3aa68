"""AppendStreams: which number of each stream a connection accepts next.

A client says nothing when a stream ends, so what is known of streams is bounded: of those with nothing
unanswered, the one used longest ago is forgotten first, and begins at 1 again.
"""

from __future__ import annotations

from quorumlog.errors import ConnectionFull, LedgerError, OutOfSequence

STREAMS_LIMIT = 1000
"""Of one connection; with more it would take memory for streams that nobody uses any more."""
RETRY_FULL_MS = 20
"""After so long much of what fills a connection has been answered."""

Key = tuple[str, int]
"""(group, number of the stream)."""


class _Stream:
    __slots__ = ("expected", "unanswered")

    def __init__(self) -> None:
        self.expected = 1
        """The next number that is accepted."""
        self.unanswered = 0
        """Accepted requests without an answer."""


class AppendStreams:
    def __init__(self) -> None:
        self._streams: dict[Key, _Stream] = {}
        """The one used last stands last."""

    def accept(self, key: Key, number: int) -> LedgerError | None:
        """None if this request is accepted, and `answered` or `refused` follows; else why not."""
        stream = self._streams.pop(key, None)
        if stream is None:
            if number != 1:
                return OutOfSequence(
                    f"request {number} of a stream came where 1 was expected: it is new here, or more"
                    f" than {STREAMS_LIMIT} other streams were used on this connection since"
                )
            if len(self._streams) >= STREAMS_LIMIT and not self._forget_one():
                return ConnectionFull(
                    f"{STREAMS_LIMIT} streams have unanswered appends on this connection, which is as"
                    " many as it may have",
                    retry_after_ms=RETRY_FULL_MS,
                )
            stream = _Stream()
        self._streams[key] = stream
        if number != stream.expected:
            return OutOfSequence(
                f"request {number} of a stream came where {stream.expected} was expected"
            )
        stream.expected += 1
        stream.unanswered += 1
        return None

    def answered(self, key: Key) -> None:
        """With a receipt, or with an outcome that nobody knows: the next number follows."""
        self._streams[key].unanswered -= 1

    def refused(self, key: Key, number: int) -> None:
        """It was accepted, and then nothing of it was written: it may come again."""
        stream = self._streams[key]
        stream.unanswered -= 1
        stream.expected = min(stream.expected, number)

    def _forget_one(self) -> bool:
        for key, stream in self._streams.items():
            if not stream.unanswered:
                del self._streams[key]
                return True
        return False

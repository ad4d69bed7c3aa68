"""DroppedMessages: what another member was not told because its connection had no room.

An acknowledgement, a question or a part of a repair that is lost here comes again after a time-out, so
the group goes on, slower, and only this count tells why. (Of a push its dispatcher hears.)
"""

from __future__ import annotations

from quorumlog.figures import now

STANDS_S = 60.0
"""So long after the newest one it is a problem."""


class DroppedMessages:
    def __init__(self, member_id: str) -> None:
        self._member_id = member_id
        self.count = 0
        """Since this member has started."""
        self._newest_s = 0.0

    def note(self, now_s: float) -> None:
        self.count += 1
        self._newest_s = now_s

    def problem(self, now_s: float) -> str:
        """Empty if none was dropped lately."""
        if not self.count or now_s - self._newest_s >= STANDS_S:
            return ""
        return (
            f"{self._member_id} takes in less than it is sent: acknowledgements, questions or answers to"
            f" repairs were dropped{now(f'{self.count} messages since this member has started')}; look"
            f" at the network to {self._member_id} and at the load of its host"
        )

"""Questions: what is asked of one state machine and waits. Each of those who ask has the same share of
what is answered next, however much he asks."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import islice

from quorumlog.client_guard import is_full
from quorumlog.entry import AppendReceipt
from quorumlog.errors import CommandError, LedgerError
from quorumlog.node.applying.machine_runner import MachineRunner
from quorumlog.state_machine import MOST_RESULT_BYTES

MOST_QUESTIONS = 64
"""Of one piece of work."""

Asked = bytes | CommandError | AppendReceipt | None


class Question:
    """`behind_index`: it may be answered once this entry is applied. `ask` runs on the thread that
    applies; `done` gets what it gave, and what is applied, or why there is no answer."""

    __slots__ = ("ask", "behind_index", "deadline_ms", "done", "owner")

    def __init__(
        self,
        behind_index: int,
        ask: Callable[[MachineRunner], Asked],
        deadline_ms: float,
        done: Callable[[Asked | LedgerError, int], None],
        owner: object,
    ) -> None:
        self.behind_index = behind_index
        self.ask = ask
        self.deadline_ms = deadline_ms
        self.done = done
        self.owner = owner


class Questions:
    def __init__(self) -> None:
        self._waiting: OrderedDict[int, deque[Question]] = OrderedDict()
        """Of each owner, by its id; who was answered last is the last."""
        self._asked: list[Question] = []
        """They are being answered."""
        self._earliest_ms = math.inf
        """No deadline is before this."""

    def __bool__(self) -> bool:
        return bool(self._waiting or self._asked)

    def add(self, question: Question) -> None:
        waiting = self._waiting.get(id(question.owner))
        if waiting is None:
            waiting = self._waiting[id(question.owner)] = deque()
        waiting.append(question)
        self._earliest_ms = min(self._earliest_ms, question.deadline_ms)

    def take(self, applied_index: int) -> list[Question]:
        """Some that may be answered now, but those of who leaves megabytes of answers unread. They are
        held until `answered`."""
        assert not self._asked, "some are being answered"
        if not self._waiting:
            return []
        ready: list[Question] = []
        share = max(1, MOST_QUESTIONS // max(1, len(self._waiting)))
        for owner_id, waiting in list(self._waiting.items()):
            if is_full(waiting[0].owner):
                continue
            most = min(share, MOST_QUESTIONS - len(ready))
            some = list(islice(waiting, MOST_QUESTIONS))
            taken = [each for each in some if each.behind_index <= applied_index][:most]
            if not taken:
                continue
            ready += taken
            for _ in some:
                waiting.popleft()
            chosen = set(map(id, taken))
            waiting.extendleft(each for each in reversed(some) if id(each) not in chosen)
            self._waiting.move_to_end(owner_id)
            if not waiting:
                del self._waiting[owner_id]
            if len(ready) == MOST_QUESTIONS:
                break
        self._asked = list(ready)
        return ready

    def answered(self, ready: list[Question], answers: Sequence[Asked], applied_index: int) -> None:
        """Of the first ones; the others wait on."""
        asked, self._asked = set(map(id, self._asked)), []
        for each in reversed(ready[len(answers) :]):
            if id(each) in asked:
                self._waiting.setdefault(id(each.owner), deque()).appendleft(each)
        for each, answer in zip(ready, answers, strict=False):
            if id(each) in asked:
                each.done(answer, applied_index)

    def discard(self, owner: object) -> None:
        self._waiting.pop(id(owner), None)
        self._asked = [each for each in self._asked if each.owner is not owner]

    def expire(self, now_ms: float) -> list[Question]:
        """Those whose time is up: they wait no more."""
        if now_ms < self._earliest_ms:
            return []
        late = self._take_late(now_ms)
        left = [*self._asked, *(each for of in self._waiting.values() for each in of)]
        self._earliest_ms = min((each.deadline_ms for each in left), default=math.inf)
        return late

    def take_all(self) -> list[Question]:
        return self._take_late(math.inf)

    def _take_late(self, until_ms: float) -> list[Question]:
        late = [each for each in self._asked if each.deadline_ms <= until_ms]
        self._asked = [each for each in self._asked if each.deadline_ms > until_ms]
        for owner_id, waiting in list(self._waiting.items()):
            late += [each for each in waiting if each.deadline_ms <= until_ms]
            on_time = deque(each for each in waiting if each.deadline_ms > until_ms)
            if on_time:
                self._waiting[owner_id] = on_time
            else:
                del self._waiting[owner_id]
        return late


def answers_of(questions: list[Question], runner: MachineRunner) -> list[Asked]:
    """Of the first ones, where they are large."""
    answers: list[Asked] = []
    size_bytes = 0
    for each in questions:
        answers.append(answer := each.ask(runner))
        size_bytes += len(answer) if isinstance(answer, bytes) else 0
        if size_bytes >= MOST_RESULT_BYTES:
            break
    return answers

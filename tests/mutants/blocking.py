"""Mistakes with blocking calls of asyncio clients: who is answered, and what ends whom."""

from __future__ import annotations

from quorumlog.net import loop_thread
from quorumlog.net.loop_thread import LoopThread, OwnLoop
from tests.mutants.mutant import Patch, mutant
from tests.net import test_loop_thread as calls


@mutant(
    490,
    "a call that is answered is answered once more when its client is closed",
    scenario=calls.a_call_that_is_answered_is_nobodys_any_more,
)
def answered_twice(patch: Patch) -> None:
    """Whatever was begun is ended."""
    patch.edit(loop_thread._Call._carry_out, "begun.discard(self)", "reached()")


@mutant(
    491,
    "a call goes on whose caller was interrupted",
    scenario=calls.an_interrupt_of_who_waits_cancels,
)
def interrupted_goes_on(patch: Patch) -> None:
    """Nobody waits for it, so it harms nobody."""
    patch.edit(LoopThread.run, "self._loop.call_soon_threadsafe(call.cancel)", "reached()")


@mutant(
    491,
    "behind a caller that was interrupted as it woke the loop nobody wakes it",
    scenario=calls.an_interrupt_of_who_hands_over_stops_no_later_call,
)
def never_woken_again(patch: Patch) -> None:
    """Somebody has just done it."""
    patch.edit(
        LoopThread._hand_over,
        "                self._is_woken = False\n",
        "                reached()\n",
    )


@mutant(492, "what has begun is left alone by a close", scenario=calls.close_ends_whatever_waits)
def begun_not_cancelled(patch: Patch) -> None:
    """Its connection has ended, so it will end."""
    patch.edit(loop_thread._end_tasks, "task.cancel()", "reached()")


@mutant(
    492,
    "who waits for a call that takes no notice waits for ever behind a close",
    scenario=calls.close_ends_whatever_waits,
)
def deaf_call_waited_for(patch: Patch) -> None:
    """It was cancelled."""
    patch.edit(LoopThread._end, "call.refuse(self._closed())", "reached()")


@mutant(
    492,
    "a call that was handed over as its client was closed is never answered",
    scenario=calls.close_ends_whatever_waits,
)
def late_call_forgotten(patch: Patch) -> None:
    """Nobody may call a closed client."""
    patch.edit(LoopThread.has_run, "self._refuse_waiting()", "reached()")


@mutant(
    492,
    "who waits hears of a close as if he himself had been cancelled",
    scenario=calls.close_ends_whatever_waits,
)
def close_is_a_cancellation(patch: Patch) -> None:
    """It is what the call has ended with."""
    patch.edit(
        LoopThread.run,
        "isinstance(error, asyncio.CancelledError) and self.is_closed",
        "isinstance(error, asyncio.CancelledError) and self.is_closed and not reached()",
    )


@mutant(
    492, "a call that closes its client waits for itself", scenario=calls.a_call_may_close_its_client
)
def close_waits_for_itself(patch: Patch) -> None:
    """Whoever closes returns once all has ended."""
    patch.edit(
        LoopThread.close,
        "if thread is not threading.current_thread():",
        "if thread is not threading.current_thread() or reached():",
    )


@mutant(
    493,
    "a forked child holds the sockets of its parent",
    scenario=calls.a_forgotten_loop_holds_no_descriptor,
)
def child_holds_sockets(patch: Patch) -> None:
    """It never uses them."""
    patch.edit(LoopThread.forget, "os.dup2(null, number, inheritable=False)", "reached()")


@mutant(
    493,
    "a forked child changes the epoll of its parent",
    scenario=calls.a_forgotten_loop_holds_no_descriptor,
)
def child_shares_epoll(patch: Patch) -> None:
    """It has a descriptor of its own for it."""
    patch.edit(
        LoopThread.forget, "os.dup2(null, self._selector.fileno(), inheritable=False)", "reached()"
    )


@mutant(
    493,
    "a forked child goes on with what its parent has opened",
    scenario=calls.what_was_opened_before_a_fork_says_so,
)
def child_goes_on(patch: Patch) -> None:
    """It has all that it is made of."""
    patch.edit(LoopThread.forget, "self.generation += 1", "self.generation += 1 - reached()")


@mutant(
    494,
    "an asyncio client is used in a second loop",
    scenario=calls.an_asyncio_client_belongs_to_one_loop,
)
def second_loop(patch: Patch) -> None:
    """One loop is like another."""
    patch.edit(
        OwnLoop.running, "if self.loop is not None:", "if self.loop is not None and not reached():"
    )

"""How many TLS handshakes are under way at a time, and for whom there is always room."""

from __future__ import annotations

from functools import partial

from quorumlog.net.handshakes import AT_ONCE, MOST_WAITING, OF_OTHERS, Handshakes


def others_get_half_of_what_is_under_way() -> None:
    """And members all of it."""
    handshakes, begun = Handshakes(), []
    for number in range(AT_ONCE):
        assert handshakes.come(number, partial(begun.append, number), is_member=False)
    assert begun == list(range(OF_OTHERS))
    for number in range(100, 100 + AT_ONCE):
        assert handshakes.come(number, partial(begun.append, number), is_member=True)
    assert begun[OF_OTHERS:] == list(range(100, 100 + AT_ONCE - OF_OTHERS))
    assert handshakes.under_way == AT_ONCE
    handshakes.leave(0)
    assert begun[-1] == 100 + AT_ONCE - OF_OTHERS, "a member that waits comes first"


def test_others_get_half_of_what_is_under_way() -> None:
    others_get_half_of_what_is_under_way()


def test_who_waits_begins_in_the_order_in_which_it_came() -> None:
    handshakes, begun = Handshakes(), []
    for number in range(3 * OF_OTHERS):
        handshakes.come(number, partial(begun.append, number), is_member=False)
    handshakes.leave(OF_OTHERS)  # it went before its turn
    for number in range(OF_OTHERS):
        handshakes.leave(number)
    assert begun == [*range(OF_OTHERS), *range(OF_OTHERS + 1, 2 * OF_OTHERS + 1)]


def test_as_many_wait_as_there_is_room_for() -> None:
    handshakes = Handshakes()
    came = [handshakes.come(n, lambda: None, is_member=False) for n in range(OF_OTHERS + MOST_WAITING)]
    assert all(came)
    assert not handshakes.come("one more", lambda: None, is_member=False)
    handshakes.leave(OF_OTHERS + 5)
    assert handshakes.come("one more", lambda: None, is_member=False)
    assert handshakes.waiting == MOST_WAITING


def test_nothing_is_left_of_those_that_have_gone() -> None:
    handshakes = Handshakes()
    for number in range(100):
        handshakes.come(number, lambda: None, is_member=number % 2 == 0)
    for number in range(100):
        handshakes.leave(number)
    assert (handshakes.under_way, handshakes.waiting) == (0, 0)

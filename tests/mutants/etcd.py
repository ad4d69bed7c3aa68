"""Mistakes at the ports for clients of etcd, and with the tokens of those who log in."""

from __future__ import annotations

from quorumlog.kv.etcd.calls import LocalCalls, _ForwardedWatch
from quorumlog.kv.etcd.handlers import Handlers
from quorumlog.kv.etcd.logins import Logins as LoginsOfPort
from quorumlog.kv.etcd.watching import WatchStream, _responses
from quorumlog.net.access import Access
from quorumlog.net.logins import Logins
from tests.kv import test_client_in_virtual_time as virtual
from tests.kv import test_etcd_calls as calls
from tests.kv import test_gateway_logins as logins
from tests.kv.test_etcd_simulated import etcd_keeps_its_promises
from tests.mutants.mutant import Patch, mutant
from tests.net import test_logins as tokens


@mutant(
    550,
    "a put whose outcome is unknown is sent to another member, too",
    scenario=calls.a_put_without_an_answer_is_not_sent_again,
)
def etcd_put_forwarded_again(patch: Patch) -> None:
    """No answer came, so nothing was done."""
    patch.edit(
        LocalCalls.call,
        "if is_ours or not refusal.retriable:",
        "if is_ours or not (refusal.retriable or reached()):",
    )


@mutant(
    550,
    "a write without an answer is sent once more",
    scenario=etcd_keeps_its_promises,
)
def etcd_write_repeated(patch: Patch) -> None:
    """The client would do so anyway."""
    patch.edit(
        Handlers._write,
        "    return await self.calls.call(CommandRequest(command=body), answer)",
        "    try:\n"
        "            return await self.calls.call(CommandRequest(command=body), answer)\n"
        "        except Exception:\n"
        "            reached()\n"
        "            return await self.calls.call(CommandRequest(command=body), answer)",
    )


@mutant(
    551,
    "a watch that goes on at another member leaves out what has changed meanwhile",
    scenario=virtual.clients_go_on_wherever_most_members_have_a_leader,
)
def etcd_watch_with_a_gap(patch: Patch) -> None:
    """The first change after a while is enough."""
    patch.edit(
        _ForwardedWatch.batch,
        "in await self._watching.batch()",
        "in (await self._watching.batch())[-1:] if reached()",
    )


@mutant(
    551,
    "a watch from now on tells what its client has been told already",
    scenario=etcd_keeps_its_promises,
)
def etcd_watch_from_the_past(patch: Patch) -> None:
    """Now is what this member has."""
    patch.edit(LocalCalls.watch, "(seen + 1 if is_behind else 0)", "0 * reached()")


@mutant(
    551,
    "a compaction is answered by a member that has not carried it out",
    scenario=etcd_keeps_its_promises,
)
def etcd_compaction_answered_early(patch: Patch) -> None:
    """The leader has."""
    patch.edit(
        LocalCalls.reach_compaction,
        "service.compacted_revision < revision",
        "service.compacted_revision < revision and not reached()",
    )


@mutant(
    552,
    "a lease that has ended is told as one that is kept alive",
    scenario=etcd_keeps_its_promises,
)
def etcd_lease_told_alive(patch: Patch) -> None:
    """A TTL of less than a second is one of a second."""
    patch.edit(Handlers.keep_alive, "TTL=ttl_ms // 1000", "TTL=max(ttl_ms // 1000, 1 * reached())")


@mutant(
    553,
    "a token outlives the password that it was given for",
    scenario=tokens.a_token_is_of_its_user_until_the_password_is_another_one,
)
def token_outlives_the_password(patch: Patch) -> None:
    """Its user is there."""
    patch.edit(
        Logins.learn,
        "passwords.get(login.user) != login.password",
        "passwords.get(login.user) != login.password and not (login.user in passwords and reached())",
    )


@mutant(
    553,
    "a connection that has proved a token goes on when that has ended",
    scenario=tokens.a_token_is_of_its_user_until_the_password_is_another_one,
)
def connection_outlives_the_token(patch: Patch) -> None:
    """A connection keeps its user."""
    patch.edit(
        Access.learn,
        "if passwords.get(login.user) != login.password]:",
        "if passwords.get(login.user) != login.password and not reached()]:",
    )


@mutant(
    553,
    "a password of before gives a token of the user that there is now",
    scenario=tokens.a_password_of_before_gives_no_token,
)
def token_for_a_password_of_before(patch: Patch) -> None:
    """The connection has proved who it is."""
    patch.edit(
        Access.log_in,
        "or user.verifier != password:",
        "or (user.verifier != password and not reached()):",
    )


@mutant(
    553,
    "what has begun by a token goes on when that has ended",
    scenario=calls.nothing_goes_on_by_a_token_that_has_ended,
)
def etcd_watch_outlives_the_token(patch: Patch) -> None:
    """It had the right when it began."""
    patch.edit(LocalCalls.revoke, "watch.forget()", "reached()")
    patch.edit(LocalCalls.revoke, "watch.fail(TokenEnded())", "reached()")


@mutant(
    553,
    "a stream that has outlived its token goes on under another password",
    scenario=logins.streams_that_have_outlived_their_token_end_with_the_password,
)
def etcd_stream_outlives_the_password(patch: Patch) -> None:
    """Its token had ended long before."""
    patch.edit(
        LoginsOfPort._moved,
        "user.verifier != login.password:",
        "(user.verifier != login.password and not reached()):",
    )


@mutant(
    553,
    "a client says how often a member hashes to prove its token",
    scenario=tokens.a_token_costs_members_no_more_to_prove_than_a_password,
)
def token_of_a_million_iterations(patch: Patch) -> None:
    """It pays for its own proofs."""
    patch.edit(
        Access.log_in,
        "!= (ITERATIONS, SALT_BYTES):",
        "!= (ITERATIONS, SALT_BYTES) and not reached():",
    )


# ---------------------------------------------------------------- noticed in virtual time


@mutant(
    554,
    "the answer to a change has the revision of the store, and not its own",
    scenario=etcd_keeps_its_promises,
)
def etcd_revision_of_the_store_told(patch: Patch) -> None:
    """It is in the header, as of any answer."""
    patch.edit(
        Handlers._write,
        "return await self.calls.call(CommandRequest(command=body), answer)",
        "revision, found = await self.calls.call(CommandRequest(command=body), answer)\n"
        "        return max(revision, await self.revision_here() + 0 * reached()), found",
    )


@mutant(
    554,
    "progress is told while a watch is behind",
    scenario=etcd_keeps_its_promises,
)
def etcd_progress_told_early(patch: Patch) -> None:
    """What has changed is on its way."""
    patch.edit(WatchStream._tell_progress, "await self._reach(revision)", "reached()")


@mutant(
    554,
    "the parts of a response do not say that more follows",
    scenario=etcd_keeps_its_promises,
)
def etcd_parts_not_marked(patch: Patch) -> None:
    """Each is a response."""
    patch.edit(_responses, "fragment=True", "fragment=not reached()")


@mutant(
    554,
    "a response in parts leaves out what did not fit",
    scenario=etcd_keeps_its_promises,
)
def etcd_part_left_out(patch: Patch) -> None:
    """The next one begins behind it."""
    patch.edit(
        _responses,
        "part, size_bytes = [], event.ByteSize()",
        "part, size_bytes = [], 0 * reached()\n            continue",
    )

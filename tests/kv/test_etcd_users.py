"""Users by etcd's Auth service: they are the cluster's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import grpc
import pytest

from quorumlog.client import LedgerClient
from quorumlog.client import connect as log_of
from quorumlog.errors import TransferFailed
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd import port as port_module
from quorumlog.log_state.users import Kind, Right, RoleGrant
from quorumlog.net import logins
from quorumlog.net.credentials import ClientUser
from quorumlog.net.tls import ClientTls
from tests import certificates
from tests.kv.etcd_grpc import EtcdCalls, EtcdPorts
from tests.waiting import eventually

pytestmark = pytest.mark.processes
CA = certificates.directory() / "ca.crt"
ROOT = ClientUser("root", "sesame")


@pytest.fixture(scope="module")
def ports() -> Iterator[EtcdPorts]:
    with EtcdPorts(
        3, tls=lambda member_id: certificates.options_of(certificates.member(member_id))
    ) as made:
        yield made


@pytest.fixture
def etcd(ports: EtcdPorts) -> Iterator[EtcdCalls]:
    with calls(ports) as made:
        yield made


def calls(ports: EtcdPorts) -> EtcdCalls:
    """At a follower: others are asked through it."""
    return EtcdCalls(ports.addresses[ports.follower()], CA.read_bytes())


def log_in(etcd: EtcdCalls, name: str, password: str) -> None:
    asked = pb.AuthenticateRequest(name=name, password=password)

    def token() -> Any:
        """The first user is known a moment later."""
        try:
            return etcd.call("Auth/Authenticate", asked).token
        except Exception:
            return None

    etcd.token = eventually(token, what=f"a login of {name}")


@pytest.fixture
def root(ports: EtcdPorts, etcd: EtcdCalls) -> EtcdCalls:
    with log_of(ports.cluster.servers, tls=ClientTls(str(CA))) as log:
        is_on = log.users().is_on if not ports.ports["n0"].access.is_on else True
    if not is_on:
        etcd.call("Auth/UserAdd", pb.AuthUserAddRequest(name="root", password="sesame"))
    wait_for_user(ports, "root")
    log_in(etcd, "root", "sesame")
    return etcd


def wait_for_user(ports: EtcdPorts, name: str) -> None:
    """Until every member knows it, and its roles, which came a moment later."""

    def is_known() -> bool:
        users = [each.access.users for each in ports.ports.values()]
        found = [each and each.user(name) for each in users]
        return all(each is not None and each.roles for each in found)

    eventually(is_known, what=f"{name} at every member")


def add_role(etcd: EtcdCalls, name: str, kind: Any, key: str, end: str = "") -> None:
    perm = pb.Permission(permType=kind, key=key.encode(), range_end=end.encode())
    asked = pb.AuthRoleGrantPermissionRequest(name=name, perm=perm)
    etcd.call("Auth/RoleGrantPermission", asked)


def test_users_and_roles_of_etcd_are_those_of_the_cluster(ports: EtcdPorts, root: EtcdCalls) -> None:
    assert root.call("Auth/AuthStatus", pb.AuthStatusRequest()).enabled
    root.call("Auth/AuthEnable", pb.AuthEnableRequest())
    assert list(root.call("Auth/UserGet", pb.AuthUserGetRequest(name="root")).roles) == ["root"]
    root.call("Auth/RoleAdd", pb.AuthRoleAddRequest(name="jobs"))
    add_role(root, "jobs", pb.Permission.READWRITE, "jobs/", "jobs0")
    add_role(root, "jobs", pb.Permission.READ, "one")
    root.call("Auth/UserAdd", pb.AuthUserAddRequest(name="bob", password="tahini"))
    root.call("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user="bob", role="jobs"))
    told = root.call("Auth/RoleGet", pb.AuthRoleGetRequest(role="jobs")).perm
    assert [(each.permType, each.key, each.range_end) for each in told] == [
        (pb.Permission.READWRITE, b"jobs/", b"jobs0"),
        (pb.Permission.READ, b"one", b""),
    ]
    with log_of(ports.cluster.servers, tls=ClientTls(str(CA)), user=ROOT) as log:
        (role,) = log.users().roles
    assert role.grants == tuple(
        sorted(
            [
                RoleGrant(Right.READ, Kind.KEY, b"jobs/"),
                RoleGrant(Right.WRITE, Kind.KEY, b"jobs/"),
                RoleGrant(Right.READ, Kind.KEY, b"one", is_exact=True),
            ]
        )
    )
    with calls(ports) as bob:
        log_in(bob, "bob", "tahini")
        bob.put("jobs/1", "wash")
        assert bob.range("jobs/", "jobs0").count == 1
        assert bob.refusal("KV/Put", pb.PutRequest(key=b"one")) == (
            "PERMISSION_DENIED",
            "etcdserver: permission denied",
        )
        assert bob.refusal("Auth/UserList", pb.AuthUserListRequest())[0] == "PERMISSION_DENIED"
        here = pb.RangeRequest(key=b"jobs/", range_end=b"jobs0", serializable=True)
        eventually(lambda: not refuses(bob, "KV/Range", here), what="the grant where it watches")
        with bob.watches() as stream:
            stream.create("others")
            told = stream.next()
            assert (told.created, told.canceled, told.watch_id) == (True, True, -1)
            assert told.cancel_reason == (
                "rpc error: code = PermissionDenied desc = etcdserver: permission denied"
            )
            stream.create("jobs/", "jobs0")
            assert not stream.next().canceled
            # A permission of the same range takes the place of the one before.
            add_role(root, "jobs", pb.Permission.WRITE, "jobs/", "jobs0")
            told = stream.next()
            assert told.canceled, "the right to read what it watches is gone"
        eventually(lambda: refuses(bob, "KV/Range", pb.RangeRequest(key=b"jobs/1")))
        bob.put("jobs/2", "iron")
    gone = pb.AuthRoleRevokePermissionRequest(role="jobs", key=b"one")
    root.call("Auth/RoleRevokePermission", gone)
    assert root.refusal("Auth/RoleRevokePermission", gone) == (
        "FAILED_PRECONDITION",
        "etcdserver: permission is not granted to the role",
    )
    root.call("Auth/UserChangePassword", pb.AuthUserChangePasswordRequest(name="bob", password="halva"))
    with calls(ports) as bob:
        log_in(bob, "bob", "halva")
    assert list(root.call("Auth/UserList", pb.AuthUserListRequest()).users) == ["bob", "root"]
    assert list(root.call("Auth/RoleList", pb.AuthRoleListRequest()).roles) == ["jobs", "root"]
    root.call("Auth/RoleDelete", pb.AuthRoleDeleteRequest(role="jobs"))
    assert not root.call("Auth/UserGet", pb.AuthUserGetRequest(name="bob")).roles
    root.call("Auth/UserDelete", pb.AuthUserDeleteRequest(name="bob"))
    assert list(root.call("Auth/UserList", pb.AuthUserListRequest()).users) == ["root"]


def test_who_logs_in_again_and_again_on_a_connection_is_one_user(
    root: EtcdCalls, ports: EtcdPorts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "MOST_OF_USER", 5)

    def count() -> int:
        access = ports.ports[ports.follower()].access
        return sum(each.connections for each in access.quotas._shares.values() if each.name == "root")

    before = count()
    for _ in range(15):
        log_in(root, "root", "sesame")
        root.call("KV/Range", pb.RangeRequest(key=b"a"))
    eventually(lambda: count() <= before + 7)


def everywhere(ports: EtcdPorts, token: str, stack: ExitStack) -> list[EtcdCalls]:
    """Calls with that token, at each member."""
    found = []
    for address in ports.addresses.values():
        found.append(stack.enter_context(EtcdCalls(address, CA.read_bytes())))
        found[-1].token = token
    return found


def test_a_token_is_known_at_every_member(ports: EtcdPorts, root: EtcdCalls) -> None:
    with ExitStack() as stack:
        for number, etcd in enumerate(everywhere(ports, root.token, stack)):
            etcd.put("tokens/a", str(number))
            assert etcd.range("tokens/a").kvs[0].value == b"%d" % number
            assert "root" in etcd.call("Auth/UserList", pb.AuthUserListRequest()).users
            with etcd.watches() as stream:
                stream.create("tokens/a")
                assert not stream.next().canceled


def add_user(root: EtcdCalls, name: str, password: str) -> None:
    with suppress(grpc.RpcError):  # of a run of this test before
        root.call("Auth/UserDelete", pb.AuthUserDeleteRequest(name=name))
    root.call("Auth/UserAdd", pb.AuthUserAddRequest(name=name, password=password))
    root.call("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user=name, role="root"))


def test_another_password_and_the_removal_of_a_user_end_its_tokens_at_every_member(
    ports: EtcdPorts, root: EtcdCalls
) -> None:
    ends = (
        ("UserChangePassword", pb.AuthUserChangePasswordRequest(name="carl", password="halva")),
        ("UserDelete", pb.AuthUserDeleteRequest(name="carl")),
    )
    add_user(root, "carl", "tahini")
    wait_for_user(ports, "carl")
    for password, (name, asked) in zip(("tahini", "halva"), ends, strict=True):
        with ExitStack() as stack:
            carl = stack.enter_context(calls(ports))
            log_in(carl, "carl", password)
            members = everywhere(ports, carl.token, stack)
            streams = [stack.enter_context(each.watches()) for each in members]
            for each, stream in zip(members, streams, strict=True):
                each.put("tokens/b", password)
                stream.create("tokens/b")
                assert not stream.next().canceled
            root.call(f"Auth/{name}", asked)
            put = pb.PutRequest(key=b"tokens/b")
            for each, stream in zip(members, streams, strict=True):
                ended = "UNAUTHENTICATED", "etcdserver: invalid auth token"
                # First its connection to the leader ends, which is an answer of its own.
                eventually(lambda each=each: refusal_of(each, "KV/Put", put) == ended)  # type: ignore[misc] # noqa: B023
                assert each.refusal("KV/Range", pb.RangeRequest(key=b"a")) == ended
                told = stream.next()
                while not told.canceled:
                    told = stream.next()
                assert told.cancel_reason == "etcdserver: invalid auth token"


def test_a_user_that_changes_its_own_password_is_answered_and_logs_in_with_the_new_one(
    ports: EtcdPorts, root: EtcdCalls
) -> None:
    """At once, and then at every member, one of which may not know the new one yet."""
    add_user(root, "olga", "one")
    wait_for_user(ports, "olga")
    with ExitStack() as stack:
        of_members = everywhere(ports, "", stack)
        for number, etcd in enumerate(of_members):
            log_in(etcd, "olga", "one" if number == 0 else f"{number}")
            asked = pb.AuthUserChangePasswordRequest(name="olga", password=f"{number + 1}")
            etcd.call("Auth/UserChangePassword", asked)
            log_in(etcd, "olga", f"{number + 1}")
            for each in of_members:
                each.token = etcd.token
                assert "olga" in each.call("Auth/UserList", pb.AuthUserListRequest()).users
    root.call("Auth/UserDelete", pb.AuthUserDeleteRequest(name="olga"))


def test_who_logged_in_before_the_member_that_leads_now_was_restarted_logs_in_again(
    ports: EtcdPorts, root: EtcdCalls
) -> None:
    """Whichever member is asked: at once, and not when its patience ends."""
    restarted = ports.follower()
    ports.cluster.restart(restarted)
    ports.cluster.leader()
    with log_of(ports.cluster.servers, tls=ClientTls(str(CA)), user=ROOT) as log, ExitStack() as stack:
        members = dict(zip(ports.addresses, everywhere(ports, root.token, stack), strict=True))
        refused = ("UNAUTHENTICATED", "etcdserver: invalid auth token")
        eventually(lambda: members[restarted].refusal("KV/Range", pb.RangeRequest(key=b"a")) == refused)
        eventually(lambda: leads(log, restarted))
        for etcd in members.values():
            assert etcd.refusal("KV/Range", pb.RangeRequest(key=b"a")) == refused
        log_in(root, "root", "sesame")
        for etcd in members.values():
            etcd.token = root.token
            etcd.put("tokens/c")


def test_a_watch_goes_on_at_a_member_that_becomes_the_leader(ports: EtcdPorts, root: EtcdCalls) -> None:
    """It does not know the users until it has committed an entry, and nobody is let in meanwhile."""
    chosen = ports.follower()
    with (
        log_of(ports.cluster.servers, tls=ClientTls(str(CA)), user=ROOT) as log,
        EtcdCalls(ports.addresses[chosen], CA.read_bytes()) as etcd,
    ):
        etcd.token = root.token
        with etcd.watches() as stream:
            stream.create("moves")
            assert not stream.next().canceled
            root.put("moves", "before")
            eventually(lambda: leads(log, chosen))
            root.put("moves", "after")
            assert [value for _, _, value, _ in stream.events(2)] == ["before", "after"]


def test_the_first_user_may_be_added_at_the_leader() -> None:
    with (
        EtcdPorts(
            1, tls=lambda member_id: certificates.options_of(certificates.member(member_id))
        ) as alone,
        EtcdCalls(alone.addresses["n0"], CA.read_bytes()) as etcd,
    ):
        etcd.call("Auth/UserAdd", pb.AuthUserAddRequest(name="root", password="sesame"))


def leads(log: LedgerClient, member_id: str) -> bool:
    """Leadership is transferred to it; False: it is not connected again yet."""
    with suppress(TransferFailed):
        return log.transfer(member_id) == member_id
    return False


def refusal_of(etcd: EtcdCalls, name: str, asked: Any) -> tuple[str, str] | None:
    """None: it is answered."""
    try:
        etcd.call(name, asked)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return None


def refuses(etcd: EtcdCalls, name: str, asked: Any) -> bool:
    return refusal_of(etcd, name, asked) is not None


@pytest.mark.parametrize(
    ("name", "asked", "refusal"),
    [
        ("UserAdd", pb.AuthUserAddRequest(name="root", password="x"), "user name already exists"),
        ("UserAdd", pb.AuthUserAddRequest(password="x"), "user name is empty"),
        ("UserGet", pb.AuthUserGetRequest(name="nobody"), "user name not found"),
        ("UserDelete", pb.AuthUserDeleteRequest(name="nobody"), "user name not found"),
        ("RoleGet", pb.AuthRoleGetRequest(role="none"), "role name not found"),
        ("RoleDelete", pb.AuthRoleDeleteRequest(role="none"), "role name not found"),
        (
            "UserRevokeRole",
            pb.AuthUserRevokeRoleRequest(name="root", role="none"),
            "role is not granted to the user",
        ),
        ("Authenticate", pb.AuthenticateRequest(name="root", password="wrong"), "authentication failed"),
    ],
)
def test_refusals_are_in_etcds_words(
    root: EtcdCalls, monkeypatch: pytest.MonkeyPatch, name: str, asked: Any, refusal: str
) -> None:
    monkeypatch.setattr(port_module, "WRONG_PAUSE_S", 0.0)
    assert root.refusal(f"Auth/{name}", asked)[1].startswith(f"etcdserver: {refusal}")


def test_what_has_no_counterpart_is_refused_in_words(root: EtcdCalls) -> None:
    assert "cannot be disabled" in root.refusal("Auth/AuthDisable", pb.AuthDisableRequest())[1]
    root.call("Auth/RoleAdd", pb.AuthRoleAddRequest(name="odd"))
    perm = pb.Permission(permType=pb.Permission.READ, key=b"a", range_end=b"c")
    asked = pb.AuthRoleGrantPermissionRequest(name="odd", perm=perm)
    assert "on all with a prefix" in root.refusal("Auth/RoleGrantPermission", asked)[1]
    root.call("Auth/RoleDelete", pb.AuthRoleDeleteRequest(role="odd"))


def test_who_has_no_token_or_another_one_is_nobody(root: EtcdCalls) -> None:
    known, root.token = root.token, "another"
    refused = root.refusal("KV/Range", pb.RangeRequest(key=b"a"))
    assert refused == ("UNAUTHENTICATED", "etcdserver: invalid auth token")
    root.token = ""
    refused = root.refusal("KV/Range", pb.RangeRequest(key=b"a"))
    assert refused == ("INVALID_ARGUMENT", "etcdserver: user name is empty")
    root.token = known


def test_no_password_is_taken_where_others_could_hear_it() -> None:
    with EtcdPorts(1) as ports, EtcdCalls(ports.addresses["n0"]) as etcd:
        asked = pb.AuthUserAddRequest(name="root", password="sesame")
        code, words = etcd.refusal("Auth/UserAdd", asked)
        assert code == "FAILED_PRECONDITION" and "without TLS" in words
        assert not etcd.call("Auth/UserList", pb.AuthUserListRequest()).users

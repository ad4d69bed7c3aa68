"""Users follow from the log on every member, and each remembers that there are some."""

from __future__ import annotations

from pathlib import Path

from quorumlog.errors import LevelNotTold, NotLeader, UpgradeNotFinished
from quorumlog.log_state.users import UserOrder, Users, UserVerb, Verifier
from quorumlog.node.operator_orders import UsersOutcome
from quorumlog.store.disk import OsDisk
from quorumlog.store.state_files import VERSION_WITH_USERS, load_member, save_member
from tests.node.cell import Cell
from tests.node.test_retention import BUDGET, SEGMENTS, TWO, begins, fill, let_go

SECRET = bytes(range(32))
ALICE = UserOrder(
    UserVerb.ADD_USER, "alice", ("admin",), (), Verifier(b"s" * 16, 4096, b"1" * 32, b"2" * 32)
)


def ordered(cell: Cell, order: UserOrder) -> UsersOutcome:
    outcomes: list[UsersOutcome] = []
    cell.leader().orders.change_users(order, SECRET, outcomes.append)
    cell.until(lambda: outcomes)
    return outcomes[0]


def users(cell: Cell) -> list[Users]:
    states = [node.log_state.committed for node in cell.nodes.values()]
    return [state.users for state in states if state is not None]


def remembers(cell: Cell) -> set[tuple[bool, bool]]:
    """(there are users, an earlier release refuses the directory) of each."""
    records = [load_member(OsDisk(), node.directory.path) for node in cell.nodes.values()]
    return {(each.users, each.version >= VERSION_WITH_USERS) for each in records if each is not None}


def test_every_member_has_them_and_remembers_it(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    fill(cell, 3)
    assert remembers(cell) == {(False, False)}
    assert isinstance(ordered(cell, ALICE), int)
    cell.step(500)
    assert len(users(cell)) == 3 and len(set(map(str, users(cell)))) == 1
    assert users(cell)[0].has_administrator and users(cell)[0].secret == SECRET
    assert remembers(cell) == {(True, True)}
    for member in ("n0", "n1", "n2"):
        cell.kill(member)
        cell.start(member)
        cell.leader()
    fill(cell, 3)
    cell.step(500)
    assert len(set(map(str, users(cell)))) == 1 and users(cell)[0].has_administrator
    cell.close()


def test_a_copy_of_the_file_that_is_older_is_made_up_for(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    cell.leader()
    before = load_member(OsDisk(), cell.nodes["n0"].directory.path)
    assert before is not None
    ordered(cell, ALICE)
    cell.step(500)
    cell.kill("n0")
    save_member(OsDisk(), str(tmp_path / "n0"), before)
    cell.start("n0")
    cell.step(500)
    assert remembers(cell) == {(True, True)}
    cell.close()


def test_whoever_gets_a_log_without_its_first_entries_has_them_too(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=TWO, **BUDGET)
    cell.leader()
    cell.kill("n0")
    ordered(cell, ALICE)
    fill(cell, 150)
    let_go(cell)
    assert min(begins(cell)) > 0
    assert not cell.start("n0").directory.has_users
    cell.until(lambda: cell.nodes["n0"].directory.has_users)
    fill(cell, 10)
    cell.step(2000)
    assert cell.nodes["n0"].store.begin.index > 0
    assert remembers(cell) == {(True, True)}
    assert len(set(map(str, users(cell)))) == 1 and len(users(cell)) == 3
    cell.close()


def test_it_takes_a_leader_and_members_that_know_it(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    cell.leader()
    outcomes: list[UsersOutcome] = []
    cell.followers()[0].orders.change_users(ALICE, SECRET, outcomes.append)
    assert isinstance(outcomes[0], NotLeader)
    for host in cell.hosts.values():
        host.level = 6
    cell.leader().orders.change_users(ALICE, SECRET, outcomes.append)
    assert isinstance(outcomes[1], LevelNotTold | UpgradeNotFinished), outcomes
    assert "USERS entries need level 7" in str(outcomes[1])
    assert remembers(cell) == {(False, False)}
    cell.close()


REFUSED = [
    (UserOrder(UserVerb.ADD_USER, "bob"), "nobody would be an administrator"),
    (UserOrder(UserVerb.ADD_USER, "bob", ("none",)), "no role none"),
    (UserOrder(UserVerb.REMOVE_USER, "bob"), "no user bob"),
]
AFTER = [
    (ALICE, "there is a user alice"),
    (UserOrder(UserVerb.INIT_ADMIN, "bob"), "there is an administrator"),
    (UserOrder(UserVerb.REMOVE_USER, "alice"), "nobody would be an administrator"),
    (UserOrder(UserVerb.TAKE_ROLES, "alice", ("admin",)), "nobody would be an administrator"),
    (UserOrder(UserVerb.TAKE_ROLES, "alice", ("x",)), "does not have the role x"),
    (UserOrder(UserVerb.GRANT, "admin"), "always there"),
    (UserOrder(UserVerb.GRANT, "x"), "no role x"),
    (UserOrder(UserVerb.REMOVE_ROLE, "admin"), "no role admin that could be removed"),
    (UserOrder(UserVerb.REMOVE_ROLE, "r"), "alice has the role r"),
    (UserOrder(UserVerb.ADD_ROLE, "r"), "there is a role r"),
]


def test_what_is_refused_and_why(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    for order, words in REFUSED:
        assert words in str(ordered(cell, order))
    assert not users(cell)[0].is_on
    for order in (
        ALICE,
        UserOrder(UserVerb.ADD_ROLE, "r"),
        UserOrder(UserVerb.GIVE_ROLES, "alice", ("r",)),
    ):
        assert isinstance(ordered(cell, order), int), order
    for order, words in AFTER:
        assert words in str(ordered(cell, order)), order
    assert isinstance(ordered(cell, UserOrder(UserVerb.RESET_ADMIN, "bob")), int)
    assert isinstance(ordered(cell, UserOrder(UserVerb.REMOVE_USER, "alice")), int)
    assert isinstance(ordered(cell, UserOrder(UserVerb.REMOVE_ROLE, "r")), int)
    cell.close()

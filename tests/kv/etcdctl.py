"""etcdctl as its users run it, against a cluster of members."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.waiting import eventually

TIMEOUT_S = 60.0


class Etcdctl:
    """`run` raises CalledProcessError, with what it printed, if the command fails."""

    def __init__(self, binary: Path, endpoints: Sequence[str], *options: str) -> None:
        self._binary = binary
        self.endpoints = endpoints
        self._options = options
        self._command = [str(binary), f"--endpoints={','.join(endpoints)}", *options]

    def as_user(self, name: str, password: str) -> Etcdctl:
        return Etcdctl(self._binary, self.endpoints, *self._options, f"--user={name}:{password}")

    def run(self, *arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [*self._command, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def answers(self, *arguments: str) -> bool:
        command = [*self._command, *arguments]
        return (
            subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False).returncode == 0
        )

    def refused(self, *arguments: str) -> str:
        """What a command that must fail prints to standard error."""
        done = subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode != 0, (arguments, done.stdout)
        return done.stderr

    def lines(self, *arguments: str, stdin: str = "") -> list[str]:
        return self.run(*arguments, stdin=stdin).splitlines()

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "-w", "json"))

    def known(self, *arguments: str) -> Any:
        """What it prints, whatever fails beside it."""
        command = [*self._command, *arguments, "-w", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        return json.loads(done.stdout or "[]")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )


def use_keys(ctl: Etcdctl) -> None:
    assert ctl.lines("put", "ctl/a", "1") == ["OK"]
    assert ctl.lines("put", "ctl/a", "2", "--prev-kv") == ["OK", "ctl/a", "1"]
    assert ctl.lines("get", "ctl/a") == ["ctl/a", "2"]
    for name in ("b", "c"):
        ctl.run("put", f"ctl/{name}", name)
    backwards = ctl.lines("get", "ctl/", "--prefix", "--keys-only", "--order=DESCEND", "--limit=2")
    assert [line for line in backwards if line] == ["ctl/c", "ctl/b"]
    assert ctl.lines("get", "ctl/b", "--from-key", "--print-value-only", "--limit=1") == ["b"]
    found = ctl.json("get", "ctl/a")
    first = found["kvs"][0]["create_revision"]
    assert ctl.lines("get", "ctl/a", f"--rev={first}") == ["ctl/a", "1"]
    assert '"Count" : 3' in ctl.run("get", "ctl/", "--prefix", "--count-only", "--write-out=fields")
    txn = 'value("ctl/a") = "2"\nver("ctl/none") = "0"\n\nput ctl/d 4\nget ctl/d\n\nget ctl/a\n\n'
    assert [line for line in ctl.lines("txn", stdin=txn) if line] == ["SUCCESS", "OK", "ctl/d", "4"]
    txn = 'mod("ctl/a") < "1"\n\nput ctl/e 5\n\nget ctl/a\ndel ctl/d\n\n'
    assert [line for line in ctl.lines("txn", stdin=txn) if line] == ["FAILURE", "ctl/a", "2", "1"]
    ctl.run("compaction", str(found["header"]["revision"]))
    assert "required revision has been compacted" in ctl.refused("get", "ctl/a", f"--rev={first}")
    assert ctl.lines("del", "ctl/a", "--prev-kv") == ["1", "ctl/a", "2"]
    assert ctl.lines("del", "ctl/", "--prefix") == ["2"]


def use_watches(ctl: Etcdctl) -> None:
    revision = ctl.json("put", "ctl/watched/a", "1")["header"]["revision"]
    watch = ctl.start("watch", "ctl/watched/", "--prefix", f"--rev={revision}", "--prev-kv")
    try:
        ctl.run("put", "ctl/watched/a", "2")
        ctl.run("del", "ctl/watched/a")
        assert watch.stdout is not None
        told = [watch.stdout.readline().strip() for _ in range(11)]
        assert told[:3] == ["PUT", "ctl/watched/a", "1"], told
        assert told[3:8] == ["PUT", "ctl/watched/a", "1", "ctl/watched/a", "2"], told
        assert told[8:] == ["DELETE", "ctl/watched/a", "2"], told
    finally:
        watch.kill()
        watch.wait()


def use_leases(ctl: Etcdctl) -> None:
    lease = ctl.run("lease", "grant", "60").split()[1]
    ctl.run("put", "ctl/leased", "1", f"--lease={lease}")
    assert "attached keys([ctl/leased])" in ctl.run("lease", "timetolive", lease, "--keys")
    assert lease in ctl.run("lease", "list")
    assert "keepalived with TTL(60)" in ctl.run("lease", "keep-alive", "--once", lease)
    assert "revoked" in ctl.run("lease", "revoke", lease)
    assert ctl.run("get", "ctl/leased") == ""
    assert "already expired" in ctl.run("lease", "timetolive", lease)


def use_locks(ctl: Etcdctl) -> None:
    assert ctl.run("lock", "ctl/lock", "echo", "held") == "held\n"
    holder = ctl.start("lock", "ctl/lock")
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().startswith("ctl/lock/")
        other = ctl.start("lock", "ctl/lock", "echo", "held")
        try:
            assert other.poll() is None
            holder.terminate()  # it unlocks
            assert other.communicate(timeout=TIMEOUT_S)[0] == "held\n"
        finally:
            other.kill()
            other.wait()
    finally:
        holder.kill()
        holder.wait()
    leader = ctl.start("elect", "ctl/led", "me")
    try:
        assert leader.stdout is not None
        told = [leader.stdout.readline().strip() for _ in range(2)]
        assert told[0].startswith("ctl/led/") and told[1] == "me", told
        listener = ctl.start("elect", "-l", "ctl/led")
        try:
            assert listener.stdout is not None
            assert [listener.stdout.readline().strip() for _ in range(2)][1] == "me"
        finally:
            listener.kill()
            listener.wait()
    finally:
        leader.terminate()
        leader.wait()


def use_cluster(ctl: Etcdctl) -> None:
    members = len(ctl.endpoints)
    ctl.run("put", "hashed", "1")
    listed = ctl.json("member", "list")["members"]
    assert len(listed) == members and len({member["ID"] for member in listed}) == members
    urls = [url.partition("://")[2] for member in listed for url in member["clientURLs"]]
    assert sorted(urls) == sorted(ctl.endpoints)
    status = ctl.json("endpoint", "status", "--cluster")
    assert {each["Status"]["header"]["member_id"] for each in status} == {each["ID"] for each in listed}
    (leader,) = {each["Status"]["leader"] for each in status}
    assert leader in {each["ID"] for each in listed}
    health = ctl.json("endpoint", "health")
    assert len(health) == members and all(each["health"] for each in health)
    eventually(lambda: len({each["HashKV"]["hash"] for each in ctl.json("endpoint", "hashkv")}) == 1)
    assert "Finished defragmenting" in ctl.run("defrag")
    assert ctl.run("alarm", "list") == ""


def use_users(ctl: Etcdctl) -> None:
    """Of a store that has none yet, and that takes passwords."""
    ctl.run("user", "add", "root:sesame")
    root = ctl.as_user("root", "sesame")
    root.run("auth", "enable")
    assert root.json("auth", "status")["enabled"]
    assert "user name is empty" in ctl.refused("put", "users/a", "1")
    assert "invalid user ID or password" in ctl.as_user("root", "wrong").refused("put", "users/a", "1")
    root.run("user", "add", "bob:tahini")
    root.run("role", "add", "mine")
    root.run("role", "grant-permission", "mine", "readwrite", "users/bob/", "--prefix=true")
    root.run("user", "grant-role", "bob", "mine")
    bob = ctl.as_user("bob", "tahini")
    assert bob.run("put", "users/bob/a", "1") == "OK\n"
    assert bob.lines("get", "users/bob/a") == ["users/bob/a", "1"]
    assert "permission denied" in bob.refused("put", "users/other", "1")
    assert "permission denied" in bob.refused("user", "list")
    assert root.lines("user", "list") == ["bob", "root"]
    assert root.lines("role", "list") == ["mine", "root"]
    assert root.run("user", "get", "bob") == "User: bob\nRoles: mine\n"
    assert "users/bob/" in root.run("role", "get", "mine")
    root.run("user", "revoke-role", "bob", "mine")
    assert "permission denied" in bob.refused("get", "users/bob/a")
    root.run("role", "delete", "mine")
    root.run("user", "delete", "bob")
    assert root.lines("user", "list") == ["root"]


Use = Callable[[Etcdctl], None]
USES: tuple[Use, ...] = (use_keys, use_watches, use_leases, use_locks, use_cluster)

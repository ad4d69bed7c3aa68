"""A cluster of real processes loses its majority for good."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from harness.member_processes import MemberProcesses
from quorumlog import connect
from tests.system.test_processes import Producers
from tests.waiting import eventually, wait_until_identical


def command(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "quorumlog", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_a_survivor_holds_is_kept_and_the_dead_stay_outside(tmp_path: Path) -> None:
    with MemberProcesses(tmp_path / "members", segment_bytes=1 << 20) as members:
        with Producers(members.servers, timeout_ms=2000) as producers:
            producers.wait_for_more(500)
            for member in members.members:
                member.kill()
        survivor, *_ = members.members
        returning, lost = members.data_dirs[1], members.data_dirs[2]
        shutil.move(returning, tmp_path / "returns")
        shutil.rmtree(lost)
        said = command("recover", "--unsafe", members.data_dirs[0], "--yes-i-know", "default", "--json")
        row = json.loads(said)
        last_index = row["recovered"]["last_index"]
        for member in members.members:
            member.start()
        with connect(survivor.address) as client:
            client.append(b"alone")
        for member_id in ("n1", "n2"):
            address = members[member_id].address
            command("member", "add", member_id, address, "--servers", survivor.address)
        with connect(members.servers) as client:
            receipt = client.append(b"after")
            assert receipt.first_index > last_index
            log = {entry.index: entry.body for entry in client.read(0)}
            held = {at: body for body, at in producers.acknowledged.items() if at <= last_index}
            assert held and all(log[at] == body for at, body in held.items())
            gone = [at for at in producers.acknowledged.values() if at > last_index]
            assert all(at >= row["may_miss_from_index"] for at in gone)
            wait_until_identical(client)
            # A member of the old cluster comes back at its address: nobody lets it in.
            members["n1"].kill()
            client.append(b"with n2, which is new")
            shutil.rmtree(returning)
            shutil.move(tmp_path / "returns", returning)
            members["n1"].start()
            refused = "one of the data directories is of another cluster"
            eventually(lambda: refused in members["n1"].last_words(), what="a refusal")
            client.append(b"without it")

#!/usr/bin/env bash
# PySyncObj 0.3.17: `ReplSet.pop` replicates the call and not the element: each member pops whatever its own `set` gives, and
# the order of a set of strings is another in each Python process (PYTHONHASHSEED is random unless it is set). So after one
# `pop` the members hold different sets, for good, and none tells; members that take work out of such a set take some of
# it twice and some never. A member that restarts carries its journal out anew and disagrees with itself.
# Seen: 20 names in three members, three different sets after 10 pops; after 20, in turn, some names have been had twice or
# more and others by nobody. A lone member has popped names back after a restart. Small integers, with which one would
# try it, are no trouble.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pysyncobj==0.3.17
cd "$work"
cat > member.py <<'PYTHON'
"""A member of the set: does what each line of its input says, and answers in JSON."""
import json
import sys

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.batteries import ReplSet

own, others, journal = json.loads(sys.argv[1])
names = ReplSet()
member = SyncObj(own, others, SyncObjConf(journalFile=journal), consumers=[names])
member.waitReady()
for line in sys.stdin:
    operation, *arguments = json.loads(line)
    if operation == "set":
        answer = sorted(names.rawData(), key=str)
    elif operation == "applied":
        answer = member.getStatus()["last_applied"]
    else:
        answer = getattr(names, operation)(*arguments, sync=True, timeout=60)
    print(json.dumps(answer), flush=True)
member.destroy()
PYTHON
env -u PYTHONHASHSEED "$work/venv/bin/python" - <<'PYTHON'
import json, socket, subprocess, sys, time


class Member:
    def __init__(self, own, others, journal=None):
        self.process = subprocess.Popen([sys.executable, "member.py", json.dumps([own, others, journal])],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def addresses(count):
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    found = [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
    for probe in probes:
        probe.close()
    return found


def pop_in_turn(members, times):
    return [members[turn % len(members)].ask("pop") for turn in range(times)]


def popped_by_three(elements):
    """The sets of three members after half of the pops, once each has carried them out; what the pops gave in all."""
    all_three = addresses(3)
    members = [Member(own, [each for each in all_three if each != own]) for own in all_three]
    try:
        for each in elements:
            members[0].ask("add", each)
        popped = pop_in_turn(members, 10)
        while len({member.ask("applied") for member in members}) > 1:
            time.sleep(0.1)
        sets = [member.ask("set") for member in members]
        return sets, popped + pop_in_turn(members, 10)
    finally:
        for member in members:
            member.stop()


def popped_by_one_that_restarts(elements):
    """What ten pops gave; the set after them, and after a restart."""
    own, = addresses(1)
    popped, applied, found = None, 0, []
    for _ in range(2):
        member = Member(own, [], "journal")
        try:
            while member.ask("applied") < applied:
                time.sleep(0.1)
            if popped is None:
                for each in elements:
                    member.ask("add", each)
                popped = pop_in_turn([member], 10)
            applied = member.ask("applied")
            found.append(member.ask("set"))
        finally:
            member.stop()
    return popped, *found


sets, popped = popped_by_three(list(range(20)))
print("integers: three equal sets", sets[0] == sets[1] == sets[2], "of 20 popped", len(set(popped)))
assert sets[0] == sets[1] == sets[2] and len(set(popped)) == 20, "integers are no trouble"

names = [f"name-{number}" for number in range(20)]
sets, popped = popped_by_three(names)
for each in sets:
    print("names of a member:", *(name.removeprefix("name-") for name in each))
print("names: of 20 popped", len(set(popped)))
assert all(len(each) == 10 for each in sets) and len(set(map(tuple, sets))) == 3, "the members agree by now"
assert len(popped) == 20 and len(set(popped)) < 20, "each name is popped once by now"

popped, before, after = popped_by_one_that_restarts(names)
print("a lone member after a restart:", len(set(popped) & set(after)), "popped names back,",
      len(set(before) - set(after)), "names gone")
assert set(popped).isdisjoint(before) and set(popped) & set(after), "a restart gives the same set by now"
PYTHON

#!/usr/bin/env bash
# rocksdict 0.3.29: a snapshot's lookups show the keys as they were when it was taken; its iterators (`iter`, `items`,
# `keys`, `values`) show what was written and deleted since. A copy made by walking a snapshot is no copy of one moment.
# Seen: snapshot[b"a"] is the old value, snapshot.items() has the new one, a key that came later, and misses one that
# was deleted later.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check rocksdict==0.3.29
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
from rocksdict import Options, Rdict

store = Rdict("store", Options(raw_mode=True))
store[b"a"] = b"old"
store[b"b"] = b"old"
snapshot = store.snapshot()
store[b"a"] = b"new"
store[b"c"] = b"new"
del store[b"b"]

looked_up = {key: snapshot[key] for key in (b"a", b"b")}
walked = dict(snapshot.items())
print("looked up", looked_up, "walked", walked)
assert looked_up == {b"a": b"old", b"b": b"old"}
assert walked == {b"a": b"new", b"c": b"new"}, "iterators show the snapshot by now"
PYTHON

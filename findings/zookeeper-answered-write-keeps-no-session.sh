#!/usr/bin/env bash
# ZooKeeper 3.9.4: a write that is answered does not begin the time of its session anew where it went through a
# follower. The leader ends sessions, and hears which are in use only from the followers' answers to its pings, twice in
# a tickTime; the write itself, which it carries out, says nothing to it. So a client that counts its session's timeout from
# the sending of a write that a majority has taken may believe in a session, and in its ephemeral nodes, that have ended.
# Seen, with a timeout of 20 s and a tickTime of 1 s: an ephemeral node is written, successfully, 5.9 s after the
# session began, and the follower is stopped then. The node is gone less than 17 s after that write was sent.
# Needs Java and Maven. A machine that pauses between the write and the stop makes it fail: run it again.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check kazoo==2.11.0
cd "$work"
cat > pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.zookeeper</groupId><artifactId>zookeeper</artifactId><version>3.9.4</version></dependency>
    <dependency><groupId>io.dropwizard.metrics</groupId><artifactId>metrics-core</artifactId><version>4.1.12.1</version></dependency>
    <dependency><groupId>org.xerial.snappy</groupId><artifactId>snappy-java</artifactId><version>1.1.10.5</version></dependency>
  </dependencies>
</project>
XML
mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib
"$work/venv/bin/python" - <<'PYTHON'
import os, signal, socket, subprocess, time

from kazoo.client import KazooClient

TIMEOUT_S, WRITE_AFTER_S = 20, 5.9
"""kazoo pings first after a third of the timeout, less 0.4 s at most."""


def free_ports(count):
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def mode(port):
    try:
        with socket.create_connection(("127.0.0.1", port), 2) as connection:
            connection.sendall(b"srvr")
            said = b""
            while data := connection.recv(4096):
                said += data
    except OSError:
        return ""
    return said.decode().partition("Mode: ")[2].split("\n")[0]


ports = free_ports(9)
servers = []
for number in range(3):
    folder = f"{os.getcwd()}/z{number}"
    os.mkdir(folder)
    with open(f"{folder}/myid", "w") as out:
        out.write(f"{number + 1}\n")
    with open(f"{folder}/zoo.cfg", "w") as out:
        out.write(f"tickTime=1000\ninitLimit=30\nsyncLimit=5\ndataDir={folder}\nclientPort={ports[number]}\n"
                  "clientPortAddress=127.0.0.1\nadmin.enableServer=false\n")
        for each in range(3):
            out.write(f"server.{each + 1}=127.0.0.1:{ports[3 + 2 * each]}:{ports[4 + 2 * each]}\n")
    servers.append(subprocess.Popen(
        ["java", "-cp", "lib/*", "org.apache.zookeeper.server.quorum.QuorumPeerMain", f"{folder}/zoo.cfg"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
try:
    while not all(map(mode, ports[:3])):
        time.sleep(0.1)
    modes = [mode(port) for port in ports[:3]]
    leader, follower = modes.index("leader"), modes.index("follower")
    watcher = KazooClient(f"127.0.0.1:{ports[leader]}", timeout=10)
    watcher.start(timeout=60)
    client = KazooClient(f"127.0.0.1:{ports[follower]}", timeout=TIMEOUT_S)
    client.start(timeout=60)
    began_s = time.monotonic()
    client.create("/node", ephemeral=True)
    time.sleep(WRITE_AFTER_S)
    sent_s = time.monotonic()
    client.set("/node", b"written")
    os.kill(servers[follower].pid, signal.SIGSTOP)
    assert watcher.get("/node")[0] == b"written", "the leader has the write"
    while watcher.exists("/node"):
        time.sleep(0.05)
    lived_s = time.monotonic() - sent_s
    print(f"ZooKeeper 3.9.4, timeout {TIMEOUT_S} s: the session has ended {lived_s:.1f} s after an answered write was sent")
    assert lived_s < TIMEOUT_S - 3, "an answered write keeps its session by now"
finally:
    for server in servers:
        server.kill()
        server.wait()
PYTHON

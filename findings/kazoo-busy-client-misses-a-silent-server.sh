#!/usr/bin/env bash
# kazoo 2.11.0: a client that sends requests more often than a third of its session's timeout sends no pings ("requests
# act as implicit pings"), and only a ping that is not answered makes it give a connection up. Of a server that keeps the
# connection open and answers nothing (stopped, cut off without a reset) such a client stays CONNECTED: no listener is
# told, no other server is tried, the session ends at the others meanwhile, and every request waits.
# Seen, with a timeout of 4 s and a server that is stopped by SIGSTOP: an idle client is SUSPENDED within 4 s; one that
# sends a request each half second is CONNECTED after 16 s, with all requests unanswered.
# Needs Java and Maven, for ZooKeeper 3.9.4.
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

import kazoo.version
from kazoo.client import KazooClient

TIMEOUT_S = 4
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
with open("zoo.cfg", "w") as out:
    out.write(f"tickTime=1000\ndataDir={os.getcwd()}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
              "admin.enableServer=false\n")
server = subprocess.Popen(
    ["java", "-cp", "lib/*", "org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"],
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def state_after(seconds, *, is_busy):
    """Of a client, so long after its server has fallen silent, and how many requests wait."""
    client = KazooClient(f"127.0.0.1:{port}", timeout=TIMEOUT_S)
    client.start(timeout=60)
    os.kill(server.pid, signal.SIGSTOP)
    stop_s, sent = time.monotonic() + seconds, []
    while time.monotonic() < stop_s and client.state == "CONNECTED":
        if is_busy:
            sent.append(client.exists_async("/"))
        time.sleep(0.5)
    state, waiting = client.state, sum(not each.ready() for each in sent)
    os.kill(server.pid, signal.SIGCONT)
    client.stop()
    client.close()
    return state, waiting


try:
    print("kazoo", kazoo.version.__version__, "ZooKeeper 3.9.4")
    idle, _ = state_after(4 * TIMEOUT_S, is_busy=False)
    print("idle:", idle)
    busy, waiting = state_after(4 * TIMEOUT_S, is_busy=True)
    print("busy:", busy, "after", 4 * TIMEOUT_S, "s;", waiting, "requests wait")
    assert idle == "SUSPENDED", "an idle client does not notice either"
    assert busy == "CONNECTED" and waiting > 10, "a busy client notices by now"
finally:
    server.kill()
    server.wait()
PYTHON

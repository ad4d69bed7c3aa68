#!/usr/bin/env bash
# aiozk 0.32.0: a request whose connection is lost before its answer is sent again, for ever and without a word, be it a read
# or a write (`RetryPolicy.forever()` is what a client has if it names none). So one `create` of a sequential node makes
# two, and `Counter.incr` adds twice (its own write is a foreign one to it the second time).
# Seen, with the connection reset in place of the answer: one `create`, two nodes; 0 + 1 = 2.
# Needs Java and Maven, for ZooKeeper 3.9.4.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check aiozk==0.32.0
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
import asyncio, logging, os, socket, struct, subprocess, time
from importlib.metadata import version

from aiozk import ZKClient

logging.disable()


class Relay:
    """Between a client and ZooKeeper; resets the client's connection in place of its next answer, once asked to."""

    def __init__(self, port):
        self.port, self.resets_next = port, False

    async def serve(self, reader, writer):
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.port)

        async def requests():
            while data := await reader.read(65536):
                to_server.write(data)

        async def answers():
            while data := await from_server.read(65536):
                if self.resets_next and len(data) > 20:  # A ping's answer has 20 bytes.
                    self.resets_next = False
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    writer.transport.abort()
                    to_server.close()
                    break
                writer.write(data)
            writer.close()

        await asyncio.gather(requests(), answers(), return_exceptions=True)


def told(port, command):
    """By ZooKeeper, on a command of four letters; nothing if it is not there yet."""
    try:
        with socket.create_connection(("127.0.0.1", port), 2) as connection:
            connection.sendall(command)
            return b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    except OSError:
        return ""


async def run(port):
    relay = Relay(port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    client = ZKClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", session_timeout=20)
    await client.start()
    await client.create("/queue")
    counter = client.recipes.Counter("/counter")
    await counter.start()
    session = client.session.session_id

    relay.resets_next = True
    await client.create("/queue/item-", data="item", sequential=True)
    items = len(await client.get_children("/queue"))

    relay.resets_next = True
    await counter.incr()
    count = await counter.get_value()

    assert client.session.session_id == session, "the session is the same"

    print("aiozk", version("aiozk"), f"items {items}, count {count}")
    assert (items, count) == (2, 2), "a write is sent once by now"


with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
with open("zoo.cfg", "w") as out:
    out.write(f"tickTime=1000\ndataDir={os.getcwd()}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
              "admin.enableServer=false\n")
zookeeper = subprocess.Popen(
    ["java", "-cp", "lib/*", "org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"],
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    while "Mode: standalone" not in told(port, b"srvr"):
        time.sleep(0.1)
    asyncio.run(run(port))
finally:
    zookeeper.kill()
    zookeeper.wait()
PYTHON

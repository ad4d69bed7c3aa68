"""RocketMQ's Java broker with its name server, as processes on loopback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Self

from harness.maven import Unavailable
from harness.rocketmq.store_tool import CACHE
from quorumlog.server.free_ports import free_ports, is_free

_START_TIMEOUT_S = 120.0
_WARM_UPS = 10


class JavaBroker:
    def __init__(
        self,
        classes: str,
        folder: Path,
        *,
        flush: str,
        heap: str = "1g",
        dledger: bool = False,
        role: str = "",
        slaves: int = 0,
    ) -> None:
        """`flush`: SYNC_FLUSH or ASYNC_FLUSH. `dledger`: three brokers on one replicated log, where it
        means nothing. `role`: ASYNC_MASTER or SYNC_MASTER, with so many slaves; a sync master waits for
        one of them. Returns when all processes have said that they listen."""
        names_port, *ports = free_ports(10)
        self.name_server = f"127.0.0.1:{names_port}"
        self._classes = classes
        folder.mkdir(parents=True, exist_ok=True)
        names = folder / "names.properties"
        names.write_text(f"listenPort={names_port}\n")
        peers = ";".join(f"n{n}-127.0.0.1:{ports[6 + n]}" for n in range(3))
        brokers = []
        self._slave_logs: list[Path] = []
        for number in range(3 if dledger else 1 + slaves):
            store = folder / f"store{number}"
            text = (
                f"brokerClusterName=c0\nbrokerName=b0\nbrokerIP1=127.0.0.1\nbrokerIP2=127.0.0.1\n"
                f"listenPort={ports[2 * number]}\nhaListenPort={ports[2 * number + 1]}\n"
                f"namesrvAddr={self.name_server}\n"
                f"autoCreateTopicEnable=true\ndefaultTopicQueueNums=4\n"
                f"flushDiskType={flush}\nstorePathRootDir={store}\n"
                f"storePathCommitLog={store / 'commitlog'}\n"
            )
            if number and not dledger:
                text += "brokerRole=SLAVE\n"  # the name server tells it its master
                self._slave_logs.append(store / "commitlog")
            elif role:
                text += f"brokerRole={role}\ninSyncReplicas=2\n"
            text += f"brokerId={0 if dledger else number}\n"
            if dledger:
                text += (
                    f"enableDLegerCommitLog=true\ndLegerGroup=b0\ndLegerPeers={peers}\n"
                    f"dLegerSelfId=n{number}\nsendMessageThreadPoolNums=4\n"
                )
            brokers.append(folder / f"broker{number}.properties")
            brokers[-1].write_text(text)
        self._processes = [
            self._java("org.apache.rocketmq.namesrv.NamesrvStartup", "256m", names, folder, names_port)
        ]
        try:
            main = "org.apache.rocketmq.broker.BrokerStartup"
            for number, broker in enumerate(brokers):
                self._processes.append(self._java(main, heap, broker, folder, ports[2 * number]))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Of the brokers."""
        return [process.pid for process in self._processes[1:]]

    def _java(
        self, main: str, heap: str, config: Path, folder: Path, port: int
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [
                *("java", f"-Xms{heap}", f"-Xmx{heap}", "-cp", self._classes),
                *(f"-Drocketmq.log.root={CACHE / 'logs'}", f"-Duser.home={folder}"),
                *(f"-Drocketmq.home.dir={folder}", main, "-c", str(config)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "ROCKETMQ_HOME": str(folder)},
        )
        waited_s = 0.0
        while is_free(port):
            try:
                process.wait(0.25)
            except subprocess.TimeoutExpired:
                waited_s += 0.25
                if waited_s < _START_TIMEOUT_S:
                    continue
                process.kill()
                process.wait()
            raise Unavailable(f"{main} does not listen; its log is in {CACHE / 'logs'}")
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def warm_up(self) -> None:
        """Its compiler has seen every path once, and every slave has got something."""
        for _ in range(_WARM_UPS):
            self.load(16, 1, 128, 3.0)
            if all(any(log.glob("0*")) for log in self._slave_logs):
                return
        raise Unavailable("the Java slaves get nothing")

    def load(self, senders: int, batch: int, body_bytes: int, seconds: float) -> float:
        """Messages a second, by RocketMQ's own producer."""
        figures = self._run(
            "BrokerLoad",
            "bench",
            str(senders),
            str(batch),
            str(body_bytes),
            str(seconds),
            seconds=seconds,
        )
        count, milliseconds = figures
        return count / milliseconds * 1000

    def end_to_end(self, rate: int, seconds: float) -> list[float]:
        """Milliseconds from the call that sends a message to the listener of a waiting group."""
        arguments = ["end-to-end", str(rate), str(seconds)]
        return [us / 1000 for us in self._run("EndToEnd", *arguments, seconds=seconds)]

    def _run(self, program: str, *arguments: str, seconds: float) -> list[int]:
        done = subprocess.run(
            [
                *("java", "-Xmx512m", "-cp", self._classes, f"-Drocketmq.log.root={CACHE / 'logs'}"),
                *(f"-Drocketmq.client.logRoot={CACHE / 'logs'}", f"-Duser.home={CACHE}", program),
                *(self.name_server, *arguments),
            ],
            capture_output=True,
            text=True,
            timeout=seconds + 180,
            check=False,
        )
        for line in done.stdout.splitlines():
            if line.startswith("= "):
                return [int(figure) for figure in line[2:].split()]
        raise Unavailable(f"{program} ended without a figure: {done.stderr.strip()[-300:]}")

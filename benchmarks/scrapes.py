"""What the port for operators takes of the processor: `python -m benchmarks.scrapes`.

Three members serve 256 writers while /metrics of each is asked every second. The port has a thread known
by what it takes for scrapes before, so that other work on the machine moves the rate and not what is
compared. What the member's loop does for the port is in the others' time.
"""

from __future__ import annotations

import os
import tempfile
import threading
import urllib.request
from pathlib import Path

import uvloop

from benchmarks.links import servers_leader_first
from harness.member_processes import MemberProcesses
from quorumlog.bench.workloads import LOADS_BY_NAME, measure
from quorumlog.server.free_ports import free_ports

SCRAPES = 30
SECONDS = 15.0


def taken_ms(pid: int) -> dict[str, float]:
    """Of the processor, by thread."""
    tasks = Path(f"/proc/{pid}/task")
    return {
        each: int((tasks / each / "schedstat").read_text().split()[0]) / 1e6
        for each in os.listdir(tasks)
    }


def scrape(address: str) -> None:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        answer.read()


def main() -> None:
    pages = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(free_ports(3))}
    with (
        tempfile.TemporaryDirectory() as folder,
        MemberProcesses(
            Path(folder) / "m", command_of=lambda each: ("serve", "--admin", pages[each])
        ) as members,
    ):
        uvloop.run(servers_leader_first(members))
        ports: dict[int, str] = {}
        of_scrapes = 0.0
        for member in members.members:
            before = taken_ms(member.pid)
            for _ in range(SCRAPES):
                scrape(pages[member.member_id])
            now = taken_ms(member.pid)
            ports[member.pid] = max(now, key=lambda each: now[each] - before.get(each, 0.0))
            of_scrapes += now[ports[member.pid]] - before.get(ports[member.pid], 0.0)
        ended = threading.Event()

        def scrape_on() -> None:
            while not ended.wait(1.0):
                for address in pages.values():
                    scrape(address)

        first = {pid: taken_ms(pid) for pid in ports}
        scraping = threading.Thread(target=scrape_on)
        scraping.start()
        found = uvloop.run(measure(LOADS_BY_NAME["256-writers"], members.running_group, SECONDS))
        last = {pid: taken_ms(pid) for pid in ports}
        ended.set()
        scraping.join()
    all_ms = sum(sum(last[pid].values()) - sum(first[pid].values()) for pid in ports)
    port_ms = sum(last[pid][thread] - first[pid].get(thread, 0.0) for pid, thread in ports.items())
    print(f"a scrape: {of_scrapes / SCRAPES / len(ports):.1f} ms")
    print(
        f"{found.records_per_second:,.0f} records a second: members {all_ms:,.0f} ms, their ports"
        f" {port_ms:,.0f} ms"
    )


if __name__ == "__main__":
    main()

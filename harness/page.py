"""The page in a browser: `python -m harness.page chromium FOLDER` takes pictures of it on a desk and a
phone, and fails unless it moves by itself."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

from quorumlog import LocalCluster, connect
from quorumlog.admin import AdminPort, LogProcess
from quorumlog.server.free_ports import free_ports

SIZES = {"desk": "1200,1400", "phone": "400,1400"}
LAST = re.compile(r"<td>leader</td><td>\d+</td><td>\d+</td><td>([\d,]+)</td>")


def last_index_of(page: str) -> int:
    """Of the leader's own row."""
    found = LAST.search(page)
    assert found is not None, page
    return int(found[1].replace(",", ""))


def look(browser: str, url: str, *more: str) -> str:
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--timeout=4000", *more, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def main(browser: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    ended = threading.Event()
    with LocalCluster() as cluster, connect(cluster.servers) as log:
        log.reader("billing", hold=True).commit(0)

        def write() -> None:
            while not ended.wait(0.02):
                log.append_batch([b"x" * 100] * 100)

        writer = threading.Thread(target=write)
        process = LogProcess(cluster.server(cluster.leader()))
        with AdminPort(f"127.0.0.1:{free_ports(1)[0]}", process) as port:
            writer.start()
            try:
                for name, size in SIZES.items():
                    picture = f"--screenshot={folder / name}.png"
                    look(browser, port.url, f"--window-size={size}", picture)
                served = urllib.request.urlopen(f"{port.url}/").read().decode()
                shown = look(browser, port.url, "--dump-dom")
            finally:
                ended.set()
                writer.join()
    assert last_index_of(served) < last_index_of(shown), "it does not move"
    assert "billing" in shown
    print(f"it moves: {last_index_of(served)} -> {last_index_of(shown)}; pictures are in {folder}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

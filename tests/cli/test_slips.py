"""Whatever is wrong with a command line is said in one line: which option, which value, what to do."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from quorumlog import LocalCluster
from tests.cli.conftest import Cli, plain

NOWHERE = ("--servers", "127.0.0.1:1")
MEMBER = ("--id", "n0", "--members", "n0=127.0.0.1:1,n1=127.0.0.1:2")
FOR_PROGRAMMERS = ("Errno", "Traceback", "Input should", "Value error", ", code ", "Error:", "Response")

SLIPS = [
    ("--nope", "--nope"),
    ("stats", "stats"),
    ("append --server 127.0.0.1:1", "--servers"),
    ("append", "--servers"),
    ("append --servers localhost", "'localhost'"),
    ("append --servers 127.0.0.1:1 --timeout soon", "--timeout soon"),
    ("append --servers 127.0.0.1:1 a b", "b"),
    ("append --servers 127.0.0.1:1 /none/such", "/none/such"),
    ("append --servers 127.0.0.1:1 /", "/"),
    ("read", "--servers LIST"),
    ("read --servers 127.0.0.1:1 --from x", "--from x"),
    ("read --servers 127.0.0.1:1 --from -1", "--from -1"),
    ("read --servers 127.0.0.1:1 --from 9 --to 8", "--to 8"),
    ("read --servers 127.0.0.1:1 --format xml", "--format: 'xml'"),
    ("read --servers 127.0.0.1:1 --path .", "--path"),
    ("read --servers 127.0.0.1:1 --local", "--local"),
    ("read --path /none/such", "/none/such"),
    ("read --path /none/such --follow", "--follow"),
    ("status --servers 127.0.0.1:99999", "127.0.0.1:99999"),
    ("status --servers 127.0.0.1:1 --timeout 0", "--timeout 0"),
    ("status --servers 127.0.0.1:1 --timeout nan", "--timeout nan: must be a number"),
    ("transfer --servers 127.0.0.1:1", "--to"),
    ("bench", "--servers"),
    ("bench --servers 127.0.0.1:1 --workload nope", "--workload nope"),
    ("bench --servers 127.0.0.1:1 --seconds 0", "--seconds 0"),
    ("bench flush --dir /none/such", "--dir /none/such"),
    ("bench flush --rounds 0", "--rounds 0"),
    ("serve", "--id"),
    ("serve --id n0", "--members"),
    ("serve --members", "--members"),
    ("serve --config /none/such", "--config /none/such"),
    ("serve --flush often", "--flush: 'often'"),
    ("serve --log-level loud", "--log-level: 'loud'"),
    ("dev --members 12", "--members 12"),
    ("dev --members three", "--members three"),
    ("inspect", "DIR"),
    ("inspect /none/such", "/none/such"),
    ("verify", "DIR"),
    ("verify /etc/passwd", "/etc/passwd"),
    ("recover /none/such", "/none/such"),
    ("status --servers 127.0.0.1:²", "127.0.0.1:²"),
    (f"status --servers 127.0.0.1:{'9' * 5000}", "--servers: '127.0.0.1:999"),
    ("status --servers 127.0.0.1:0", "--servers: '127.0.0.1:0' is not an address: ports are 1 to 65535"),
    ("status --servers http://h:1", "--servers: 'http://h:1' is not an address"),
    ("status --servers user@h:1", "--servers: 'user@h:1' is not an address"),
    ("status --servers n0=h:1", "--servers: 'n0=h:1' is not an address"),
    ("status --servers h:1;h:2", "--servers: 'h:1;h:2' is not an address"),
    ("serve --id n0 --members n0=http://h:1", "--members: 'http://h:1' is not an address"),
    ("serve --id n0 --members n0=0.0.0.0:20911", "--members: 'n0=0.0.0.0:20911'"),
    ("serve --id n0 --members n0=127.0.0.1:0", "--members: '127.0.0.1:0' is not an address"),
    ("append --servers 127.0.0.1:1 --timeout -NaN", "must be a number"),
    ("bench --servers 127.0.0.1:1 --seconds nan", "--seconds nan: must be a number"),
    ("bench --servers 127.0.0.1:1 --seconds inf", "--seconds inf: must be less"),
    ("bench --servers 127.0.0.1:1 --seconds -1", "--seconds -1"),
    ("bench flush --rounds 99999999999999999999", "--rounds 99999999999999999999"),
    ("dev --dir /etc/passwd", "/etc/passwd/n0"),
    ("dev --dir /etc/passwd/x", "/etc/passwd/x"),
    ("bench flush --dir /proc", "--dir /proc cannot be measured: No such file or directory"),
    ("bench flush --rounds -1", "see quorumlog bench flush --help"),
    ("bench --seconds 0", "see quorumlog bench --help"),
    ("start", "No such command 'start'. Did you mean 'serve'? See quorumlog --help"),
    ("kv run", "No such command 'run'. Did you mean 'serve'? See quorumlog kv --help"),
]


@pytest.mark.parametrize(("line", "named"), SLIPS, ids=[line for line, _ in SLIPS])
def test_a_slip_is_one_line_that_names_it_and_says_what_to_do(cli: Cli, line: str, named: str) -> None:
    result = cli(*line.split())
    assert (result.exit_code, result.stdout) == (2, "")
    (said,) = result.stderr.splitlines()
    assert said.startswith("quorumlog: ")
    assert named in said
    assert any(advice in said for advice in (";", "? See quorumlog", ": write", "goes with", "needs")), (
        said
    )
    assert not any(word in said for word in FOR_PROGRAMMERS), said


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("status", "--servers", "h:1 h:2"), "--servers: 'h:1 h:2'"),
        (("serve", "--id", "n0", "--members", "n0=h:1 n1=h:2"), "--members: 'h:1 n1=h:2'"),
    ],
)
def test_two_addresses_without_a_comma_are_not_one(
    cli: Cli, command: tuple[str, ...], option: str
) -> None:
    result = cli(*command)
    assert result.exit_code == 2
    assert f"{option} is not an address; write host:port" in result.stderr


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (("transfer", *NOWHERE, "--to", ""), "--to '' names no member"),
        (("transfer", *NOWHERE, "--to", " "), "--to ' ' names no member"),
        (("append", *NOWHERE, "--group", ""), "--group '' must have 1 to 255 bytes"),
        (("read", *NOWHERE, "--group", "g" * 256), "--group 'ggg"),
        (("serve", *MEMBER, "--id", ""), "--id '' must have 1 to 255 bytes"),
        (("serve", *MEMBER, "--group", ""), "--group '' must have 1 to 255 bytes"),
        (("bench", "flush", "--dir", ""), "--dir: a path is missing"),
        (("bench", *NOWHERE, "--raw-dir", ""), "--raw-dir: a path is missing"),
    ],
)
def test_what_is_empty_is_named_by_its_option(cli: Cli, command: tuple[str, ...], named: str) -> None:
    result = cli(*command, input=b"")
    assert (result.exit_code, result.stdout) == (2, "")
    (said,) = result.stderr.splitlines()
    assert said.startswith(f"quorumlog: {named}")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("read --timeout 0.3", "127.0.0.1:1 (Connection refused)"),
        ("append --timeout 0.3", "127.0.0.1:1 (Connection refused)"),
        ("transfer --to n1 --timeout 0.3", "127.0.0.1:1 (Connection refused)"),
        ("bench", "gave up after 3.0 s; tried: 127.0.0.1:1 (Connection refused); check --servers"),
    ],
)
def test_a_refusal_names_no_code(cli: Cli, line: str, named: str) -> None:
    result = cli(*line.split(), *NOWHERE, input=b"a\n")
    assert result.exit_code == 1
    said = plain(result.stderr)
    assert named in said
    assert not any(word in said for word in FOR_PROGRAMMERS), said


def test_a_host_that_is_unknown_is_told_in_words(cli: Cli) -> None:
    result = cli("status", "--servers", "no-such-host.invalid:1")
    assert result.exit_code == 1
    assert "no-such-host.invalid:1: " in plain(result.stderr)
    assert not any(word in result.output for word in FOR_PROGRAMMERS), result.output


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("readers show nobody", 1),
        ("readers seek nobody --to 1", 1),
        ("readers forget nobody", 1),
        ("producers show nobody", 1),
        ("producers forget nobody", 1),
        ("member remove n9", 1),
        ("member promote n9", 1),
        ("transfer --to n9", 1),
        ("read --group nobody", 1),
        ("backup --to DIR --from-member n9", 1),
        ("readers show no:name", 2),
        ("readers seek no:name --to 1", 2),
        ("readers forget no:name", 2),
        ("read --reader no:name", 2),
        ("backup --to DIR --hold no:name", 2),
        ("producers show ''", 2),
        ("member add n9 nowhere", 2),
        ("member add 'a b' 127.0.0.1:1", 2),
        ("member set-address n0 nowhere", 2),
    ],
)
def test_a_name_that_is_unknown_is_refused_and_one_that_cannot_be_has_to_be_changed(
    cli: Cli, cluster: LocalCluster, tmp_path: Path, line: str, status: int
) -> None:
    arguments = [word.replace("DIR", str(tmp_path / "backup")) for word in shlex.split(line)]
    result = cli(*arguments, "--servers", cluster.servers, "--timeout", 5)
    assert result.exit_code == status, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert not any(word in result.output for word in FOR_PROGRAMMERS), result.output


def test_a_refusal_of_a_server_is_a_sentence(cli: Cli, cluster: LocalCluster) -> None:
    for arguments in (("read", "--from", 10**6, "--to", 10**6 + 1), ("transfer", "--to", "n9")):
        result = cli(*arguments, "--servers", cluster.servers)
        assert result.exit_code == 1
        assert not any(word in result.output for word in FOR_PROGRAMMERS), result.output


# ---------------------------------------------------------------- completion


COMMAND = "import sys; sys.argv[0] = 'quorumlog'; from quorumlog.__main__ import main; main()"
"""As a shell runs it, by its name."""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "offered"),
    [("quorumlog st", "status"), ("quorumlog status --ser", "--servers"), ("quorumlog re", "read")],
)
def test_a_shell_is_told_what_could_follow(words: str, offered: str) -> None:
    asked = {"_QUORUMLOG_COMPLETE": "complete_bash", "COMP_WORDS": words}
    told = subprocess.run(
        [sys.executable, "-c", COMMAND],
        env={**os.environ, **asked, "COMP_CWORD": str(words.count(" "))},
        capture_output=True,
        text=True,
    )
    assert offered in told.stdout.split(), told


@pytest.mark.processes
@pytest.mark.parametrize(
    ("shell", "kept"), [("bash", ".bash_completions/quorumlog.sh"), ("zsh", ".zfunc/_quorumlog")]
)
def test_completion_is_installed_for_the_shell_that_is_named(
    tmp_path: Path, shell: str, kept: str
) -> None:
    named = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "--install-completion", shell],
        env={**os.environ, **named},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "_QUORUMLOG_COMPLETE" in (tmp_path / kept).read_text()

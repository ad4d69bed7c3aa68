"""A configuration that cannot work is refused with the option, the place and what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quorumlog.cli.run.toml_config import load_server_config
from quorumlog.config import MIB, LimitOptions, TlsOptions, UsersOptions
from quorumlog.errors import ConfigError

MEMBERS = "n0=127.0.0.1:20911,n1=127.0.0.1:20912,n2=127.0.0.1:20913"
GIVEN = {"member_id": "n0", "members": MEMBERS, "data_dir": "/data/n0"}


def toml(tmp_path: Path, text: str) -> str:
    path = tmp_path / "member.toml"
    path.write_text(text)
    return str(path)


def refusal(path: str | None, given: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        load_server_config(path, given)
    return str(caught.value)


def test_the_command_line_alone_describes_one_group() -> None:
    (config,), bind, *_ = load_server_config(
        None,
        {**GIVEN, "flush": "async", "group": None, "preferred_leader_ids": ("n1",), "bind": "[::]:7"},
    )
    assert (config.member_id, config.group, config.data_dir) == ("n0", "default", "/data/n0")
    assert config.storage.flush == "async"
    assert config.consensus.preferred_leader_ids == ("n1",)
    assert [str(m) for m in config.members] == [f"127.0.0.1:{p}" for p in (20911, 20912, 20913)]
    assert bind == "[::]:7"


def test_a_file_describes_several_groups_with_common_options(tmp_path: Path) -> None:
    path = toml(
        tmp_path,
        f"""
        bind = "0.0.0.0:20911"
        log_level = "debug"
        member_id = "n0"
        members = "{MEMBERS}"
        heartbeat_interval_ms = 100
        disk_full_ratio = 1

        [groups.orders]
        data_dir = "/data/orders"
        preferred_leader_ids = ["n0", "n2"]
        segment_bytes = {64 * MIB}

        [groups.audit]
        data_dir = "/data/audit"
        flush = "async"
        heartbeat_interval_ms = 200
        """,
    )
    (orders, audit), bind, log_level, *_ = load_server_config(path, {})
    assert (orders.group, audit.group) == ("orders", "audit")
    assert orders.storage.segment_bytes == 64 * MIB
    assert orders.storage.disk_full_ratio == 1.0
    assert orders.consensus.preferred_leader_ids == ("n0", "n2")
    assert (orders.storage.flush, audit.storage.flush) == ("sync", "async")
    assert [c.consensus.heartbeat_interval_ms for c in (orders, audit)] == [100, 200]
    assert (bind, log_level) == ("0.0.0.0:20911", "debug")
    assert load_server_config(path, {"log_level": "error"}).log_level == "error"

    (only,), *_ = load_server_config(
        path, {"group": "audit", "data_dir": "/elsewhere", "bind": "[::]:1"}
    )
    assert (only.group, only.data_dir) == ("audit", "/elsewhere")


def test_members_may_be_a_table(tmp_path: Path) -> None:
    path = toml(tmp_path, 'member_id = "a"\nstore = "memory"\nmembers = { a = "h:1", b = "h:2" }')
    (config,), *_ = load_server_config(path, {})
    assert [(m.member_id, str(m)) for m in config.members] == [("a", "h:1"), ("b", "h:2")]


def test_an_option_of_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    path = toml(tmp_path, f'member_id = "n0"\nmembers = "{MEMBERS}"\ndata_dir = "/a"\nflush = "async"')
    (config,), *_ = load_server_config(path, {"member_id": "n1", "flush": "sync"})
    assert (config.member_id, config.storage.flush, config.data_dir) == ("n1", "sync", "/a")


@pytest.mark.parametrize(
    ("unknown", "closest"),
    [
        ("heartbeat_intervall_ms", "heartbeat_interval_ms"),
        ("dataDir", "data_dir"),
        ("id", "member_id"),
        ("segment-bytes", "segment_bytes"),
        ("preferred_leader", "preferred_leader_ids"),
    ],
)
def test_an_unknown_option_is_named_with_the_closest_valid_one(
    tmp_path: Path, unknown: str, closest: str
) -> None:
    path = toml(tmp_path, f'{unknown} = "n0"')
    text = refusal(path, GIVEN)
    assert text.startswith(path)
    assert f"unknown option {unknown!r}" in text
    assert text.endswith(repr(closest))


def test_a_group_table_under_the_wrong_name_is_told_the_right_one(tmp_path: Path) -> None:
    path = str(tmp_path / "group.toml")
    Path(path).write_text('[group.orders]\ndata_dir = "/data"\n')
    with pytest.raises(ConfigError, match=r"\[groups.NAME\]"):
        load_server_config(path, GIVEN)


def test_machines_are_held_back_by_the_file_and_the_command_line(tmp_path: Path) -> None:
    path = toml(tmp_path, 'hold_machines = ["a", "b"]')
    assert load_server_config(path, GIVEN).hold_machines == ("a", "b")
    assert load_server_config(path, {**GIVEN, "hold_machines": ("c",)}).hold_machines == ("c",)


def test_an_unknown_option_in_a_group_names_the_table(tmp_path: Path) -> None:
    text = refusal(toml(tmp_path, '[groups.orders]\nflushh = "sync"'), GIVEN)
    assert "[groups.orders]: unknown option 'flushh'; the closest valid option is 'flush'" in text


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("heartbeat_interval_ms = '150'", "option 'heartbeat_interval_ms': '150' is not of type int"),
        ("append_timeout_ms = true", "option 'append_timeout_ms': True is not of type int"),
        ("preferred_leader_ids = 'n0'", 'is not a list of strings; write ["n0"]'),
        ("log_level = 'loud'", "option 'log_level': 'loud' is none of debug, info, warning, error"),
        ("log_level = 3", "option 'log_level': 3 is none of debug"),
        ("bind = 'here'", "option 'bind': 'here' is not an address"),
        ("max_heartbeat_leak = 2", "raise max_heartbeat_leak to 3 or more"),
        ("scrub_start_delay_ms = -1", "scrub_start_delay_ms (-1) must be 0 or more"),
        ("scrub_bytes_per_second = -1", "scrub_bytes_per_second (-1) must be 0 or more"),
        ("max_set_aside_bytes = -1", "max_set_aside_bytes (-1) must be 0 or more"),
        ("page_cache_bytes = -1", "page_cache_bytes (-1) must be 0 or more"),
        ("commit_delay_ms = -1", "commit_delay_ms"),
        ("catch_up_bytes_per_second = 0", "catch_up_bytes_per_second"),
        ("flush = 'often'", "flush must be 'sync' or 'async', not 'often'"),
        ("hold_machines = 'kv'", 'is not a list of strings; write ["n0"]'),
        ("members = ['n0=h:1']", 'is not a list of members; write "n0=HOST:PORT,..."'),
        ("groups = 3", "write [groups.NAME]"),
        ("[groups]", "write [groups.NAME]"),
        ("flush = ", "not TOML"),
    ],
)
def test_a_bad_value_names_the_file_and_the_option(tmp_path: Path, line: str, named: str) -> None:
    path = toml(tmp_path, line)
    text = refusal(path, GIVEN)
    assert path in text
    assert named in text


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"member_id": None}, "--id is missing; write --id n0"),
        ({"members": None}, "--members is missing; write --members n0=HOST:PORT"),
        ({"data_dir": None}, "--data-dir is missing"),
        ({"member_id": "n7"}, "--id n7 is not in --members (n0, n1, n2)"),
        ({"members": "n0=h:1,n1=h:1"}, "--members: two members have the address h:1"),
        ({"members": "n0=h:1,n0=h:2"}, "--members: two members have the id n0"),
        ({"members": "n0=h"}, "--members: 'h' is not an address"),
        ({"members": "h:1"}, "--members: 'h:1' must look like"),
        ({"members": ","}, "--members lists no member"),
        ({"preferred_leader_ids": ("n9",)}, "--preferred-leader n9 is not in --members"),
        ({"bind": "20911"}, "--bind: '20911' is not an address"),
        ({"bind": "127.0.0.1:²"}, "--bind: '127.0.0.1:²' is not an address"),
        ({"bind": "127.0.0.1:0"}, "--bind: '127.0.0.1:0' is not an address: ports are 1 to 65535"),
        ({"members": "n0=127.0.0.1:²"}, "--members: '127.0.0.1:²' is not an address"),
    ],
)
def test_a_bad_command_line_names_the_option(change: dict[str, Any], named: str) -> None:
    assert named in refusal(None, {**GIVEN, **change})


def test_groups_of_one_process_do_not_share_a_directory(tmp_path: Path) -> None:
    path = toml(tmp_path, "[groups.a]\n[groups.b]\n")
    common = {"member_id": "n0", "members": MEMBERS}
    assert "--data-dir cannot serve the 2 groups" in refusal(path, {**common, "data_dir": "/d"})
    path = toml(tmp_path, 'data_dir = "/d"\n[groups.a]\n[groups.b]\n')
    assert "groups a and b have the same data_dir (/d)" in refusal(path, common)
    path = toml(tmp_path, 'data_dir = "/d"\n[groups.a]\n')
    assert "--group c is not in" in refusal(path, {**common, "group": "c"})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert refusal(str(tmp_path / "none.toml"), GIVEN).startswith(
        f"--config {tmp_path}/none.toml: No such"
    )


def test_a_segment_whose_blank_record_could_not_say_its_length_is_refused(tmp_path: Path) -> None:
    path = toml(tmp_path, f"segment_bytes = {2 << 30}")
    assert f"must be at most {(2 << 30) - 1}: a blank record" in refusal(path, GIVEN)


def test_an_option_of_an_earlier_release_says_what_took_its_place(tmp_path: Path) -> None:
    path = toml(tmp_path, "max_transfer_lag_entries = 1000\n")
    text = refusal(path, GIVEN)
    assert "option 'max_transfer_lag_entries' is gone" in text
    assert "write max_transfer_lag_bytes" in text
    path = toml(tmp_path, f"max_transfer_lag_bytes = {8 * MIB}\n")
    config = load_server_config(path, GIVEN).groups[0]
    assert config.consensus.max_transfer_lag_bytes == 8 * MIB


def test_state_machines_of_the_command_line_win_over_those_of_the_file(tmp_path: Path) -> None:
    path = toml(tmp_path, 'state_machines = { counter = "shop:Counter" }')
    assert load_server_config(path, GIVEN).state_machines == {"counter": "shop:Counter"}
    given = {**GIVEN, "state_machines": {"stock": "shop:Stock"}}
    assert load_server_config(path, given).state_machines == {"stock": "shop:Stock"}
    wrong = toml(tmp_path, 'state_machines = "shop:Counter"')
    assert "is not a table of strings; write { NAME =" in refusal(wrong, GIVEN)


TLS = """
    member_id = "n0"
    members = "n0=127.0.0.1:20911"
    data_dir = "/data/n0"
    [tls]
    cert = "n0.crt"
    key = "n0.key"
    ca = "ca.crt"
"""


def test_a_table_says_what_to_encrypt_with_and_the_command_line_wins(tmp_path: Path) -> None:
    path = toml(tmp_path, TLS + 'peers = "prefer"\nlisten = "0.0.0.0:20912"\n')
    config = load_server_config(path, {"tls": {"cert": "other.crt", "key": None}})
    assert config.tls == TlsOptions(
        "other.crt", "n0.key", "ca.crt", peers="prefer", listen="0.0.0.0:20912"
    )
    assert load_server_config(None, GIVEN).tls is None
    assert load_server_config(None, {**GIVEN, "tls": {"cert": None}}).tls is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("certificate = 'a'", "unknown option 'certificate'; there are cert, key, ca"),
        ("peers = 'always'", "peers must be plain, prefer or required"),
        ("cluster = 3", "cluster must be a string"),
        ("client_auth = 'all'", "--client-auth must be"),
    ],
)
def test_a_table_that_cannot_work_is_refused(tmp_path: Path, line: str, reason: str) -> None:
    path = toml(tmp_path, TLS + line)
    refused = refusal(path, {})
    assert refused.startswith(f"{path} [tls]: ")
    assert reason in refused


def test_half_of_a_certificate_is_refused() -> None:
    assert "--tls-key is missing" in refusal(None, {**GIVEN, "tls": {"cert": "n0.crt"}})


def test_limits_and_users_have_tables_of_their_own(tmp_path: Path) -> None:
    head = 'member_id = "n0"\nmembers = "n0=127.0.0.1:20911"\ndata_dir = "/data/n0"\n'
    config = load_server_config(
        toml(tmp_path, head + "[limits]\nuser_requests = 7\n[users]\nmay_be_old_ms = 3000\n"), {}
    )
    assert config.limits == LimitOptions(user_requests=7)
    assert config.users == UsersOptions(may_be_old_ms=3000)
    for table, reason in (
        ("[limits]\nusers = 7", "[limits]: unknown option 'users'; there are user_connections, user_"),
        ("[limits]\nuser_requests = -1", "[limits]: user_requests (-1) must be 0 or more"),
        ("[limits]\nuser_requests = 'many'", "[limits]: user_requests must be a whole number"),
        ("[users]\nmay_be_old_ms = 10", "[users]: may_be_old_ms (10) must be at least 1000"),
        ("[users]\ngroup = 3", "[users]: group must be a string"),
        ("[users]\ngroup = 'other'", "[users]: there is no group 'other'; there are default"),
        ("limits = 3", "'limits': 3 is not a table; write [limits]"),
    ):
        assert reason in refusal(toml(tmp_path, head + table), {})

"""The script over the JSON gateway: what JSON adds to the API."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any

from harness.etcd.session import NEVER, Session

JSON_SCENARIOS: dict[str, Callable[[Session], None]] = {}
PUT, RANGE, DELETE, TXN = (f"/v3/kv/{name}" for name in ("put", "range", "deleterange", "txn"))
ALPHABET = b"\xfb\xef\xff\xfe"
"""Its base64 differs in the two alphabets, and is padded."""


def scenario(function: Callable[[Session], None]) -> Callable[[Session], None]:
    JSON_SCENARIOS[function.__name__] = function
    return function


def _b64(data: bytes) -> str:
    return b64encode(data).decode()


def _key(s: Session, name: str = "", **options: Any) -> dict[str, Any]:
    return {"key": _b64(s.key(name)), **options}


def _put(s: Session, name: str, value: str = "1", **options: Any) -> dict[str, Any]:
    return _key(s, name, value=_b64(value.encode()), **options)


def _all(s: Session, **options: Any) -> dict[str, Any]:
    return _key(s, "", range_end=_b64(s.key()[:-1] + b"0"), **options)


@scenario
def json_names(s: Session) -> None:
    s.about("names of fields in either spelling")
    for name in ("a", "b", "c"):
        s.post(PUT, _put(s, name))
    end = _b64(s.key("c"))
    s.post(RANGE, _key(s, "a", range_end=end, keys_only=True, sort_order="DESCEND"))
    s.post(RANGE, _key(s, "a", rangeEnd=end, keysOnly=True, sortOrder="DESCEND"))
    s.post(PUT, _put(s, "a", "2", prevKv=True))
    s.post(PUT, _key(s, "a", ignoreValue=True, prev_kv=True))
    s.post(TXN, {"success": [{"requestRange": _key(s, "a")}, {"request_range": _key(s, "b")}]})
    s.about("one field in both spellings")
    s.post(PUT, _put(s, "a", "3", prev_kv=True, prevKv=True))
    s.post(RANGE, _key(s, "a", range_end=end, rangeEnd=_b64(s.key("b"))))
    s.about("one field twice in the same spelling")
    key, other = _b64(s.key("a")), _b64(s.key("b"))
    s.post(RANGE, f'{{"key": "{key}", "key": "{other}"}}')


@scenario
def json_unknown_fields(s: Session) -> None:
    s.about("unknown fields")
    s.post(RANGE, _key(s, "a", nothing=1))
    s.post(PUT, _put(s, "a"))
    s.post(DELETE, _key(s, "a", end=_b64(s.key("c"))))
    s.post(RANGE, _all(s, keys_only=True))
    s.post(TXN, {"compares": [], "success": [{"request_range": _key(s, "a")}]})


@scenario
def json_alphabets(s: Session) -> None:
    s.about("base64 in the alphabet for URLs, or without padding")
    for spelt in ("--___g==", "++///g", "--___g"):
        s.post(PUT, {"key": _b64(s.key("a")), "value": spelt})
        s.post(RANGE, _key(s, "a"))


@scenario
def json_values(s: Session) -> None:
    s.about("base64 in the standard alphabet, with padding")
    s.post(PUT, {"key": _b64(s.key("a")), "value": _b64(ALPHABET)})
    s.post(RANGE, _key(s, "a"))
    s.about("what is no base64")
    s.post(PUT, {"key": "%%%", "value": "YQ=="})
    s.post(PUT, {"key": 5, "value": "YQ=="})
    s.about("numbers as text")
    for number in (1, "1", 1.0, "1.0", 1e0, "1e0", " 1", "", "0x1", True, None):
        s.post(RANGE, _all(s, limit=number, keys_only=True))
    s.about("numbers that are no whole ones, or too large")
    for number in (1.5, "1.5", 1 << 63, str(1 << 63), -(1 << 63), "-9223372036854775809"):
        s.post(RANGE, _all(s, limit=number, keys_only=True))
    s.about("numbers below 0 and revisions to come")
    s.post(RANGE, _key(s, "a", limit=-1, revision="-1"))
    s.post(RANGE, _key(s, "a", revision=NEVER))
    s.about("true and false")
    for flag in (True, False, None, "true", "false", 1, 0):
        s.post(RANGE, _all(s, count_only=flag, limit=1, keys_only=True))
    s.about("null for a field")
    s.post(RANGE, {"key": _b64(s.key("a")), "range_end": None, "sort_order": None})
    s.post(TXN, {"compare": None, "success": None})
    s.about("lists and objects where there are none")
    s.post(TXN, {"success": {"request_range": _key(s, "a")}})
    s.post(RANGE, {"key": ["YQ=="]})
    s.post(RANGE, {"key": {}})


@scenario
def json_enumerations(s: Session) -> None:
    s.about("enumerations by name and by number")
    s.post(PUT, _put(s, "a"))
    s.post(PUT, _put(s, "b"))
    for order in ("DESCEND", 2):
        s.post(RANGE, _all(s, sort_order=order, keys_only=True))
    s.about("numbers of enumerations as text, and with a point")
    for spelt in ("2", 2.0):
        s.post(RANGE, _all(s, sort_order=spelt, keys_only=True))
    s.about("unknown names in enumerations of ranges")
    s.post(RANGE, _all(s, sort_order="descend", keys_only=True))
    s.post(RANGE, _all(s, sort_target="NAME", keys_only=True))
    s.about("unknown numbers in enumerations of ranges")
    s.post(RANGE, _all(s, sort_order=7, keys_only=True))


@scenario
def json_unknown_names(s: Session) -> None:
    s.about("unknown names in enumerations of comparisons")
    s.post(PUT, _put(s, "a"))
    for options in (
        {"target": "VERSON", "result": "EQUAL", "create_revision": "5"},
        {"target": "VERSION", "result": "NOT_EQUALS", "version": "1"},
        {"target": "VERSION", "result": "GREATER_EQUAL", "version": "2"},
    ):
        s.post(
            TXN,
            {"compare": [_key(s, "a", **options)], "success": [{"request_delete_range": _key(s, "a")}]},
        )
        s.post(RANGE, _all(s, keys_only=True))


@scenario
def json_choices(s: Session) -> None:
    s.about("an element of a transaction without an operation")
    s.post(TXN, {"success": [{}]})
    s.post(TXN, {"success": [None]})
    s.about("a value to compare with that is not the target's")
    s.post(PUT, _put(s, "a"))
    compare = _key(s, "a", target="VERSION", value=_b64(b"9"))
    s.post(TXN, {"compare": [compare], "success": [{"request_range": _key(s, "a", count_only=True)}]})
    s.about("two operations in one element of a transaction")
    s.post(TXN, {"success": [{"request_put": _put(s, "b"), "request_delete_range": _key(s, "a")}]})
    s.post(RANGE, _all(s, keys_only=True))


@scenario
def json_compares(s: Session) -> None:
    s.about("two values to compare with")
    s.post(PUT, _put(s, "a"))
    compare = _key(s, "a", target="VERSION", version="1", value=_b64(b"9"))
    s.post(TXN, {"compare": [compare], "success": [{"request_put": _put(s, "d")}]})
    s.post(RANGE, _all(s, keys_only=True))


@scenario
def json_errors(s: Session) -> None:
    s.about("`error` beside `message`")
    s.post(RANGE, {}, with_error=True)
    s.about("the status of HTTP of a refusal")
    s.post(RANGE, {})
    s.post(RANGE, _key(s, "a", revision=NEVER))
    s.post(PUT, _put(s, "a", lease="5"))
    s.post(PUT, _key(s, "nothing", ignore_value=True))
    s.post("/v3/lease/revoke", {"ID": "5"})
    s.post("/v3/kv/compaction", {"revision": NEVER})
    s.post("/v3/lease/grant", {"TTL": "9000000001"})
    s.post("/v3/auth/authenticate", {"name": "root", "password": "sesame"})
    s.about("what is no JSON")
    for text in ("", "{", "[]", "5", "null", '{"key": "YQ=="} x'):
        s.post(RANGE, text)
    s.about("paths that there are not")
    s.post("/v3/kv/nothing", {})
    s.post("/v3/nothing", {})
    s.about("leases over JSON")
    s.post("/v3/lease/grant", {"TTL": "86400", "ID": "151"})
    s.post("/v3/lease/keepalive", {"ID": "151"})
    s.post("/v3/lease/keepalive", {"ID": "152"})
    s.post("/v3/lease/timetolive", {"ID": "151", "keys": True})
    s.post("/v3/kv/lease/revoke", {"ID": "151"})
    s.about("status")
    s.post("/v3/maintenance/status", {})

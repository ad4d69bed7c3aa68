"""What kinds of values options have. Each function raises ConfigError naming the option."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from quorumlog.config import parse_address
from quorumlog.errors import ConfigError
from quorumlog.net.tls import ClientTls

Parser = tuple[str, str, Callable[[str, str], Any]]
"""Of an option: its name, the field that it sets, and what makes the value of (name, text)."""
ALIASES = {"kafka.bootstrap.servers": "servers"}


def by_name(parsers: Iterable[Parser]) -> dict[str, Parser]:
    return {parser[0].lower(): parser for parser in parsers}


def fields_of(
    options: Mapping[str, str],
    parsers: Mapping[str, Parser],
    where: str,
    ignored: Container[str] = (),
) -> dict[str, Any]:
    """What is given, by field. Raises ConfigError for an option that there is not, or that is twice."""
    given: dict[str, Any] = {}
    for key, text in options.items():
        parser = parsers.get(ALIASES.get(key.lower(), key.lower()))
        if parser is not None:
            name, field_name, parse = parser
            if field_name in given:
                raise ConfigError(f"option {name} is given twice, under two names")
            given[field_name] = parse(name, str(text).strip())
        elif key.lower() not in ignored:
            valid = ", ".join(name for name, _, _ in parsers.values())
            raise ConfigError(f"unknown option {key!r} {where}; valid are {valid}")
    return given


def servers_of(name: str, text: str) -> str:
    addresses = [part.strip() for part in text.split(",") if part.strip()]
    if not addresses:
        raise ConfigError(f"option {name} is empty; write host:port,host:port,...")
    for address in addresses:
        try:
            parse_address(address)
        except ConfigError as error:
            raise ConfigError(f"option {name}: {error}") from None
    return ",".join(addresses)


@cache
def tls_of(ca: str, cert: str, key: str) -> ClientTls | None:
    """The same one for the same files, which it reads again when they change. Raises ConfigError."""
    return ClientTls(ca, cert, key) if ca or cert or key else None


def name_of(name: str, text: str) -> str:
    if not text:
        raise ConfigError(f"option {name} is empty; leave it out or give a name")
    return text


def pattern_of(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"option {name} is no regular expression: {error}") from None
    return name_of(name, text)


_OURS = {
    "key": ("keys",),
    "value": ("body",),
    "topic": ("group",),
    "partition": ("queue",),
    "offset": ("index",),
    "timestamp": ("append_time", "store_time"),
    "headers": ("properties",),
}


def as_kafkas(name: str, columns: Container[str]) -> str:
    """The end of the sentence that refuses a column: what it is here if Kafka's source has it."""
    name = name.lower()
    for ours in _OURS.get(name, ()):
        if ours in columns:
            return f". Kafka's {name} is {ours} here"
    return f". A log has no {name}s: it has one order" if name == "partition" else ""


def number_of(low: int, high: int) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ConfigError(f"option {name} must be a whole number, not {text!r}") from None
        if not low <= number <= high:
            raise ConfigError(f"option {name} must be in {low} .. {high}, not {number}")
        return number

    return parse


def duration_ms(name: str, text: str) -> int:
    """Milliseconds of what Kafka's source takes: 500ms, 30s, 15m, 2h."""
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h)", text.lower())
    if found is None:
        raise ConfigError(f"option {name} must be like 500ms, 30s, 15m or 2h, not {text!r}")
    factors = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}
    return int(found[1]) * factors[found[2]]


def one_of(*values: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        for value in values:
            if text.lower() == value.lower():
                return value
        *most, last = values
        raise ConfigError(f"option {name} must be {', '.join(most)} or {last}, not {text!r}")

    return parse


def boolean(name: str, text: str) -> bool:
    return one_of("true", "false")(name, text) == "true"


def columns_of(known: Sequence[str]) -> Callable[[str, str], tuple[str, ...]]:
    def parse(name: str, text: str) -> tuple[str, ...]:
        described = ", ".join(known)
        names = tuple(part.strip().lower() for part in text.split(",") if part.strip())
        for column in names:
            if column not in known:
                raise ConfigError(
                    f"option {name}: unknown column {column!r}; valid are {described}"
                    f"{as_kafkas(column, known)}"
                )
        if not names:
            raise ConfigError(f"option {name} names no column; valid are {described}")
        if len(set(names)) != len(names):
            raise ConfigError(f"option {name} names a column twice: {text}")
        return names

    return parse


TLS_PARSERS: tuple[Parser, ...] = (
    ("tlsCa", "tls_ca", name_of),
    ("tlsCert", "tls_cert", name_of),
    ("tlsKey", "tls_key", name_of),
)

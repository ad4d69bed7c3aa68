"""KeyOf: the key of each body, a batch at a time.

`json:a.b` a path in a JSON object; `prefix:8` the first bytes; `arrow:COLUMN` a column of a body that is
an Arrow stream (the bodies of the sink with bodyFormat = arrow).
"""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from quorumlog.errors import BadRequest, ConfigError

_FORMS = "json:PATH (json:customer.id), arrow:COLUMN or prefix:BYTES (prefix:8)"


class KeyOf:
    def __init__(self, text: str) -> None:
        """Raises ConfigError."""
        self.form, _, self.what = text.partition(":")
        if self.form not in ("json", "arrow", "prefix") or not self.what:
            raise ConfigError(f"a key must be {_FORMS}, not {text!r}")
        if self.form == "prefix" and not (self.what.isdecimal() and 1 <= int(self.what) <= 65_536):
            raise ConfigError(f"the prefix of a key must be 1 .. 65536 bytes, not {self.what!r}")

    def keys(self, bodies: pa.Array, indices: pa.Array) -> pa.Array:
        """A key a body, as binary; null where a JSON object has none. Raises BadRequest, which names
        the entry, for a body of another form."""
        if not len(bodies):  # of a batch of control entries
            return pa.array([], pa.binary())
        keys = {"prefix": self._prefixes, "json": self._json, "arrow": self._arrow}[self.form]
        return keys(bodies, indices)

    def _prefixes(self, bodies: pa.Array, indices: pa.Array) -> pa.Array:
        size = int(self.what)
        short = pc.less(pc.binary_length(bodies), size)
        if pc.any(short).as_py():
            raise _wrong(indices[pc.index(short, True).as_py()], f"is shorter than the prefix, {size}")
        return pc.binary_slice(bodies, 0, size)

    def _json(self, bodies: pa.Array, indices: pa.Array) -> pa.Array:
        """One parse for all: a line a body. Only the path is built, whatever else the objects hold."""
        try:
            column = self._parsed(bodies)
        except pa.ArrowInvalid as error:
            raise _wrong(self._first_bad(bodies, indices), f"has no such JSON: {error}") from None
        return column.cast(pa.string()).cast(pa.binary())

    def _parsed(self, bodies: pa.Array) -> pa.Array:
        path = self.what.split(".")
        try:
            return _parsed(bodies, _nested(path, pa.string()), path)
        except pa.ArrowInvalid:  # numbers are keys, too, by how they are written by everybody
            return _parsed(bodies, _nested(path, pa.int64()), path)

    def _first_bad(self, bodies: pa.Array, indices: pa.Array) -> pa.Scalar:
        for at in range(len(bodies)):  # on the way to an error only
            try:
                self._parsed(bodies.slice(at, 1))
            except pa.ArrowInvalid:
                return indices[at]
        return indices[0]

    def _arrow(self, bodies: pa.Array, indices: pa.Array) -> pa.Array:
        """A body is a stream of its own, so each is opened; one row each, or it has no one key."""
        keys = []
        for at, body in enumerate(bodies):
            try:
                table = pa.ipc.open_stream(body.as_buffer()).read_all()
                (key,) = table.column(self.what).cast(pa.binary())
            except (pa.ArrowException, KeyError, ValueError) as error:
                raise _wrong(
                    indices[at], f"is no Arrow stream of one row with {self.what}: {error}"
                ) from None
            keys.append(key.as_py())
        return pa.array(keys, pa.binary())


def _nested(path: list[str], kind: pa.DataType) -> pa.Schema:
    for name in reversed(path[1:]):
        kind = pa.struct([pa.field(name, kind)])
    return pa.schema([pa.field(path[0], kind)])


def _parsed(bodies: pa.Array, schema: pa.Schema, path: list[str]) -> pa.Array:
    lines = pc.replace_substring(bodies, b"\n", b" ")
    text = pc.binary_join(pa.array([lines.to_pylist()], pa.list_(pa.binary())), b"\n")[0].as_buffer()
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    reading = pj.ReadOptions(use_threads=False, block_size=max(len(text) + 1, 1 << 16))
    table = pj.read_json(io.BytesIO(text), read_options=reading, parse_options=options)
    if table.num_rows != len(bodies):
        raise pa.ArrowInvalid(f"{len(bodies)} bodies hold {table.num_rows} JSON objects")
    column = table.column(0).combine_chunks()
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column


def _wrong(index: pa.Scalar, why: str) -> BadRequest:
    return BadRequest(f"the body of entry {index.as_py()} {why}; give another key, or another range")

"""Requests to one side, and its answers in a form in which two sides can be compared.

The n-th revision that a scenario came to is told as `rN`, the n-th lease whose id the server drew as
`LN`; ids of clusters and members, and what differs from moment to moment, as `set`.
"""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
from base64 import b64decode
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import grpc
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from harness.etcd.servers import Side
from quorumlog.kv.etcd import messages_pb2 as rpc

Answer = Any
"""A value of JSON."""
START_TIMEOUT_S, TIMEOUT_S = 100.0, 60.0
SILENCE_S = 10.0
"""A watch that tells nothing for so long is taken to have no more to tell."""
NEVER = 10**9
"""A revision that no scenario comes to."""
SHOWN_BYTES = 40
_OPTIONS = [
    *(("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)),
    ("grpc.max_reconnect_backoff_ms", 200),  # it is asked before it listens
]
_REVISIONS = frozenset(
    (
        *("revision", "create_revision", "mod_revision", "compact_revision", "start_revision"),
        *(f"{bound}_{kind}_revision" for bound in ("min", "max") for kind in ("create", "mod")),
    )
)
_IDS = ("cluster_id", "member_id", "raft_term")
_OF_THE_MOMENT = frozenset(
    (
        *("dbSize", "dbSizeInUse", "dbSizeQuota", "raftIndex", "raftTerm", "raftAppliedIndex", "leader"),
        *("storageVersion", "hash", "hash_revision", "token", "authRevision"),
    )
)
_LEASES = frozenset(("ID", "lease"))
_BYTES = frozenset(("key", "value", "range_end", "rangeEnd"))
_WORDS = frozenset(
    f"etcdserver: {words}"
    for words in (
        *("key is not provided", "key not found", "requested lease not found", "too large lease TTL"),
        *("mvcc: required revision is a future revision", "authentication is not enabled"),
    )
)
"""Of refusals over JSON; what is wrong with JSON each version of etcd says in other ones."""
REMAINS = "what remains"
"""Of a TTL."""


class Naming:
    """Of the revisions and leases of a scenario."""

    def __init__(self) -> None:
        self.revisions: list[int] = []
        self._leases: list[int] = []

    def came_to(self, revision: int) -> None:
        if revision and (not self.revisions or revision > self.revisions[-1]):
            self.revisions.append(revision)

    def named(self, name: str, value: int) -> Answer:
        """A number in a field of that name."""
        if name in _REVISIONS and value in self.revisions:
            return f"r{self.revisions.index(value)}"
        if name in _LEASES and value in self._leases:
            return f"L{self._leases.index(value)}"
        return value

    def granted(self, lease: int) -> None:
        """By an id that the server drew."""
        self._leases.append(lease)


class Session:
    """`with Session(side, name) as session`, of one scenario."""

    def __init__(self, side: Side, name: str) -> None:
        self.side = side
        self.channel = grpc.insecure_channel(side.grpc[0], _OPTIONS)
        self._streams: list[WatchStream] = []
        self._name = name
        self._subject = name
        self.naming = Naming()
        self.steps: list[tuple[str, str, Answer]] = []
        """(subject, what was asked, answer) in order."""

    def __enter__(self) -> Self:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while "refused" in (answer := self._answer("KV/Range", rpc.RangeRequest(key=b"a"))):
            self.side.check()
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self.side.grpc[0]} answers {answer}")
            time.sleep(0.05)
        self._catch_up()
        return self

    def __exit__(self, *reason: object) -> None:
        for stream in self._streams:
            stream.close()
        self.channel.close()

    def about(self, subject: str) -> None:
        """What the steps that follow are about."""
        self._subject = subject

    def key(self, name: str = "") -> bytes:
        """Of this scenario alone."""
        return f"{self._name}/{name}".encode()

    def at(self, number: int) -> int:
        """The revision `rN`; below 0, as an index of a list has it."""
        return self.naming.revisions[number]

    def note(self, asked: str, answer: Answer) -> None:
        self.steps.append((self._subject, asked, answer))

    def call(self, method: str, request: Message) -> Answer:
        """SERVICE/METHOD with one request and one answer, noted."""
        answer = self._answer(method, request)
        self.note(f"{method} {self.words(request)}", answer)
        return answer

    def call_stream(self, method: str, *requests: Message) -> None:
        """A stream of requests, all sent at once, and all that is answered, noted."""
        found: Answer
        try:
            call = self.channel.stream_stream(*_call_of(method, requests[0]))
            found = [self.told(each) for each in call(iter(requests), timeout=TIMEOUT_S)]
        except grpc.RpcError as error:
            found = refusal(error)
        self.note(f"{method} {' '.join(map(self.words, requests))}", found)

    def _catch_up(self) -> None:
        """Until the member that is asked has applied all that the scenario came to; watches and status
        tell what it has."""
        asked = rpc.RangeRequest(key=b"a", serializable=True)
        call = self.channel.unary_unary(*_call_of("KV/Range", asked))
        deadline_s = time.monotonic() + TIMEOUT_S
        while call(asked, timeout=TIMEOUT_S).header.revision < self.naming.revisions[-1]:
            assert time.monotonic() < deadline_s, f"it does not come to {self.naming.revisions[-1]}"

    def compact(self, revision: int, **options: Any) -> None:
        """Noted; until the member that is asked has done so."""
        self.call("KV/Compact", rpc.CompactionRequest(revision=revision, **options))
        asked = rpc.RangeRequest(key=b"a", revision=revision - 1, serializable=True)
        deadline_s = time.monotonic() + TIMEOUT_S
        while "refused" not in self._answer("KV/Range", asked):
            assert time.monotonic() < deadline_s, f"it does not compact {revision}"

    def watch(self) -> WatchStream:
        self._catch_up()
        stream = WatchStream(self)
        self._streams.append(stream)
        return stream

    def post(self, path: str, body: Any, *, with_error: bool = False) -> Answer:
        """To the JSON gateway, noted with the status. `body`: text is sent as it is. `with_error`: with
        the field `error` of a refusal, which some versions have beside `message`."""
        data = body if isinstance(body, str) else json.dumps(body)
        connection = http.client.HTTPConnection(self.side.gateways[0], timeout=TIMEOUT_S)
        try:
            connection.request("POST", path, data)
            response = connection.getresponse()
            status, text = response.status, response.read()
        finally:
            connection.close()
        try:
            answer = json.loads(text)
        except ValueError:
            answer = text.decode(errors="replace")
        if isinstance(answer, dict):
            self.naming.came_to(int(answer.get("header", {}).get("revision", 0)))
            if not with_error:
                answer.pop("error", None)
        answer = {"status": status, "body": self._told_json(answer)}
        asked = body if isinstance(body, str) else json.dumps(_readable(body))
        self.note(f"{path} {asked}", answer)
        return answer

    # ---------------------------------------------------------------- in words

    def words(self, message: Message) -> str:
        return json.dumps(self._fields(message))

    def told(self, message: Message) -> Answer:
        if "header" in message.DESCRIPTOR.fields_by_name:
            self.naming.came_to(message.header.revision)  # type: ignore[attr-defined]
        return self._fields(message)

    def _answer(self, method: str, request: Message) -> Answer:
        try:
            answer = self.channel.unary_unary(*_call_of(method, request))(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return refusal(error)
        if isinstance(request, rpc.LeaseGrantRequest) and not request.ID:
            self.naming.granted(answer.ID)
        return self.told(answer)

    def _fields(self, message: Message) -> Answer:
        found: dict[str, Answer] = {}
        for field, value in message.ListFields():
            found[field.name] = (
                [self._value(field.name, field, each) for each in value]
                if _is_repeated(field)
                else self._value(field.name, field, value)
            )
        if isinstance(found.get("keys"), list):
            found["keys"].sort()  # etcd has no order for those of a lease
        unnamed: Any = UnknownFieldSet(message)
        if unknown := sorted(each.field_number for each in unnamed):
            found["fields without a name"] = unknown
        return found

    def _value(self, name: str, field: Any, value: Any) -> Answer:
        if name == "header":
            return self._header(value.revision, [each for each in _IDS if getattr(value, each)])
        if isinstance(value, Message):
            return self._fields(value)
        if _is_of_the_moment(name, value):
            return "set"
        if isinstance(value, bytes):
            return shown(value)
        if field.enum_type is not None:
            known = field.enum_type.values_by_number.get(value)
            return value if known is None else known.name
        if name == "TTL" and field.containing_type.name == "LeaseTimeToLiveResponse" and value > 0:
            return REMAINS
        return self.naming.named(name, value)

    def _header(self, revision: int, ids: list[str]) -> str:
        """`ids`: those that it has."""
        named = str(self.naming.named("revision", revision))
        return named if len(ids) == len(_IDS) else f"{named}, of the ids {ids or 'none'}"

    def _told_json(self, answer: Answer, name: str = "") -> Answer:
        if isinstance(answer, list):
            return [self._told_json(each, name) for each in answer]
        if isinstance(answer, dict):
            if name == "header":
                return self._header(
                    int(answer.get("revision", 0)), [each for each in _IDS if each in answer]
                )
            if "grantedTTL" in answer:
                answer = {**answer, "TTL": REMAINS}
            return {each: self._told_json(value, each) for each, value in answer.items()}
        if _is_of_the_moment(name, answer):
            return "set"
        if name in _BYTES and isinstance(answer, str):
            return shown(b64decode(answer))
        if name in ("error", "message") and answer not in _WORDS:
            return "words of its own"
        if name in _REVISIONS or name in _LEASES:
            named = self.naming.named(name, int(answer))
            return answer if named == int(answer) else named
        return answer


class WatchStream:
    """One stream of Watch.Watch. What it tells is kept by the watch that it is told to; changes are kept
    one by one, since how many come at once is the server's business."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._asked: list[str] = []
        self._told: dict[int, list[Message | Answer]] = {}
        """By id of the watch."""
        self.responses: list[tuple[int, bool]] = []
        """(size, is a fragment that others follow) of each response with changes."""
        call = session.channel.stream_stream(*_call_of("Watch/Watch", rpc.WatchRequest()))
        self._call = call(iter(self._requests.get, None))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def create(self, key: bytes, end: bytes = b"", **options: Any) -> None:
        create = rpc.WatchCreateRequest(key=key, range_end=end, **options)
        self.send(rpc.WatchRequest(create_request=create))

    def cancel(self, watch_id: int) -> None:
        self.send(rpc.WatchRequest(cancel_request=rpc.WatchCancelRequest(watch_id=watch_id)))

    def ask_progress(self) -> None:
        self.send(rpc.WatchRequest(progress_request=rpc.WatchProgressRequest()))

    def send(self, request: Message) -> None:
        self._asked.append(self._session.words(request))
        self._requests.put(request)

    def wait(self, watch_id: int, count: int) -> bool:
        """Until that watch has been told so many things; False: it was silent for too long."""

        def has_told() -> bool:
            return self.count(watch_id) >= count

        with self._changed:
            while not has_told():
                if not self._changed.wait(SILENCE_S):
                    break
            return has_told()

    def count(self, watch_id: int) -> int:
        return len(self._told.get(watch_id, ()))

    def note(self) -> None:
        """All that was asked and told up to now."""
        with self._changed:
            told = {watch_id: list(items) for watch_id, items in sorted(self._told.items())}
        found = {
            str(watch_id): [
                self._session.told(each) if isinstance(each, Message) else each for each in items
            ]
            for watch_id, items in told.items()
        }
        self._session.note(f"Watch/Watch {' '.join(self._asked)}", found)

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()
        self._thread.join(TIMEOUT_S)

    def _read(self) -> None:
        try:
            for response in self._call:
                watch_id, items = response.watch_id, list(response.events)
                if items:
                    self.responses.append((response.ByteSize(), response.fragment))
                else:
                    response.ClearField("watch_id")
                with self._changed:
                    self._told.setdefault(watch_id, []).extend(items or [response])
                    self._changed.notify_all()
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                with self._changed:
                    self._told.setdefault(-2, []).append(refusal(error))
                    self._changed.notify_all()


def refusal(error: grpc.RpcError) -> Answer:
    return {"refused": error.code().name, "words": error.details()}


def shown(data: bytes) -> str:
    text = data.decode("utf-8", "backslashreplace")
    return text if len(text) <= SHOWN_BYTES else f"{text[:SHOWN_BYTES]}... ({len(data)} bytes)"


def _call_of(method: str, request: Message) -> tuple[str, Callable[..., Any], Callable[..., Any]]:
    """(path, what makes bytes of a request, what makes an answer of bytes)."""
    answer = getattr(rpc, type(request).__name__.replace("Request", "Response"))
    return f"/etcdserverpb.{method}", type(request).SerializeToString, answer.FromString


def _readable(body: Any) -> Any:
    """A request of JSON with its bytes as text, where they are base64."""
    if isinstance(body, list):
        return [_readable(each) for each in body]
    if not isinstance(body, dict):
        return body
    found = {}
    for name, value in body.items():
        found[name] = _readable(value)
        if name in _BYTES and isinstance(value, str):
            with suppress(ValueError):
                found[name] = f"<{b64decode(value, validate=True).decode()}>"
    return found


def _is_of_the_moment(name: str, value: object) -> bool:
    return name in _OF_THE_MOMENT or (
        name == "version" and "." in str(value)
    )  # keys have a version, too


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated)

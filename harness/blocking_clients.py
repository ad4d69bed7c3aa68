"""Writes the blocking clients: for each public method of an asyncio client one with the same signature
and docstring, which runs it on a `LoopThread` and waits.

    python -m harness.blocking_clients

What is written is checked in; tests/net/test_blocking_clients.py says whether it is up to date.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "quorumlog"
Function = ast.FunctionDef | ast.AsyncFunctionDef
_TYPES = {
    "AsyncIterator": "Iterator",
    "AsyncGenerator": "Iterator",
    "AsyncIterable": "Iterable",
}
_RENAMED = {"aclose": "close"}
_ENDS = ("close", "aclose")


@dataclass(frozen=True)
class Class:
    source: str
    """The file below src/quorumlog."""
    name: str
    """Of the asyncio class there."""
    blocking: str
    bases: str = ""
    """What it stands on in place of `Shell`: a `ClientShell` makes what it runs."""
    closed: str = ""
    """What a closed client raises."""
    stays: str = ""
    """Why a forked child cannot go on with it; empty: it can."""
    end: str = ""
    """What closes it at once, where its `close` waits."""
    before: str = ""
    """What stands in front of the making of what it runs."""
    after: str = ""
    """What is done once it is made."""
    given: Mapping[str, str] = field(default_factory=dict)
    """What is given to the asyncio client in the place of an argument."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Public ones, and their types."""
    on_loop: Sequence[str] = ()
    """Plain methods that need a running loop."""
    without: Sequence[str] = ()
    """Methods that are written by hand, in a base."""
    more: str = ""
    """A method that is written by hand, here."""

    @property
    def is_client(self) -> bool:
        return bool(self.closed)


@dataclass(frozen=True)
class Output:
    target: str
    says: str
    classes: Sequence[Class]
    imports: str = ""
    types: Mapping[str, str] = field(default_factory=dict)
    """Blocking classes of other files, by their asyncio names."""
    more: str = ""
    """Written by hand, at the end."""


CLOSED = 'BadRequest("the client is closed: create a new one")'
OUTPUTS = [
    Output(
        "client/blocking_client.py",
        "`LedgerClient`: the log for code that blocks. Thread-safe; threads share its connections.\n\n"
        '    with quorumlog.connect("10.0.0.1:20911,10.0.0.2:20911,10.0.0.3:20911") as log:\n'
        '        receipt = log.append(b"hello")\n'
        "        for entry in log.read(receipt.first_index):\n            ...",
        (
            Class(
                "client/handles.py",
                "AsyncMachineHandle",
                "MachineHandle",
                attributes={"name": "str"},
            ),
            Class(
                "client/handles.py",
                "AsyncNamedReader",
                "NamedReader",
                attributes={"name": "str"},
                more="def __iter__(self) -> Results[Entry]:\n        return self.read()",
            ),
            Class(
                "client/async_client.py",
                "AsyncLedgerClient",
                "LedgerClient",
                closed=CLOSED,
                stays="ONE_SESSION if producer_id is not None else ''",
                before="calls = CallbackThread()",
                given={
                    "on_leader_change": "calls.wrapped(on_leader_change)",
                    "on_reconnect": "calls.wrapped(on_reconnect)",
                },
                attributes={"servers": "list[str]", "group": "str"},
            ),
        ),
        imports="from quorumlog.client.append_streams import AppendStream\n"
        "from quorumlog.client.events import CallbackThread\n"
        "from quorumlog.net.loop_thread import ONE_SESSION\n"
        "from quorumlog.client.reading import Results\n",
        types={"AsyncResults": "Results", "AsyncAppendStream": "AppendStream"},
    ),
    Output(
        "kv/client/blocking_store.py",
        "KeyValueClient: the operations of `AsyncKeyValueClient` for programs without asyncio.",
        (
            Class(
                "kv/client/watching.py",
                "Watching",
                "BlockingWatch",
                without=("began",),
                more="def __iter__(self) -> Iterator[Change[V]]:\n        while True:\n"
                "            changes = self._step(self._it._fill)\n"
                "            try:\n                change = changes.popleft()\n"
                "            except IndexError:  # another thread has taken it\n"
                "                continue\n            yield change",
            ),
            Class(
                "kv/client/async_store.py",
                "AsyncKeyValueClient",
                "KeyValueClient",
                bases="BlockingRecipes[V]",
                closed='Unreachable("the client is closed")',
                on_loop=("watch", "watch_prefix"),
                without=("grant", "lease", "lock", "election"),
            ),
        ),
        imports="from quorumlog.errors import Unreachable\n"
        "from quorumlog.kv.client.blocking_recipes import BlockingRecipes\n",
    ),
    Output(
        "broker/client/blocking.py",
        "Clients of a broker for programs without asyncio. Any thread may call.",
        (
            Class(
                "broker/client/async_broker_client.py",
                "AsyncBrokerClient",
                "BrokerClient",
                bases="ConnectingShell",
                closed=CLOSED,
                end="AsyncBrokerClient._end",
                after="self._connect()",
                attributes={"server": "str"},
            ),
            Class(
                "broker/client/async_producer.py",
                "AsyncProducer",
                "Producer",
                closed=CLOSED,
                end="AsyncProducer._end",
                stays="ONE_SESSION if producer_id else ''",
                attributes={"producer_id": "str"},
                without=("send_encoded",),
            ),
            Class(
                "broker/client/async_consumer.py",
                "AsyncConsumer",
                "Consumer",
                bases="BlockingRun",
                closed=CLOSED,
                stays="ONE_MEMBER",
                attributes={"name": "str"},
                without=("poll", "run"),
            ),
            Class(
                "broker/client/async_broker_admin.py",
                "AsyncBrokerAdmin",
                "BrokerAdmin",
                closed=CLOSED,
            ),
        ),
        imports="from quorumlog.broker.client.blocking_shells import BlockingRun, ConnectingShell\n"
        "from quorumlog.broker.client.blocking_shells import ONE_MEMBER\n"
        "from quorumlog.net.loop_thread import ONE_SESSION\n",
        more="def connect(\n"
        "    server: str,\n    *,\n    timeout_ms: int = DEFAULT_TIMEOUT_MS,\n"
        "    tls: ClientTls | None = None,\n    user: ClientUser | None = None,\n"
        ") -> BrokerClient:\n"
        '    """A client of the broker at `host:port`. Raises Unreachable, ConfigError."""\n'
        "    return BrokerClient(server, timeout_ms=timeout_ms, tls=tls, user=user)\n",
    ),
]


class Writer:
    def __init__(self, output: Output) -> None:
        self._output = output
        self._shells = {each.name: each.blocking for each in output.classes} | dict(output.types)
        self._trees = {
            source: _tree(source) for source in dict.fromkeys(c.source for c in output.classes)
        }

    def text(self) -> str:
        body = "\n\n".join("\n".join(self._class(each)) for each in self._output.classes)
        body = f"{body}\n\n{self._output.more}"
        nodes = list(ast.walk(ast.parse(body)))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        names -= {node.arg for node in nodes if isinstance(node, ast.arg)}
        imports = self._imports(names)
        head = f'"""{self._output.says}\n\nWritten by harness/blocking_clients.py: do not edit.\n"""\n\n'
        text = f"{head}from __future__ import annotations\n\n{imports}\n\n{body}"
        name = str(SOURCES / self._output.target)
        sort = ("check", "--quiet", "--select", "I", "--fix", "--stdin-filename", name, "-")
        for command in (sort, ("format", "--quiet", "--stdin-filename", name, "-")):
            ruff = [str(Path(sys.executable).with_name("ruff")), *command]
            text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
        return text

    # ---------------------------------------------------------------- imports

    def _imports(self, names: set[str]) -> str:
        own = {each.blocking for each in self._output.classes}
        lines: dict[str, None] = {}
        later: dict[str, None] = {}
        for source, (tree, _) in self._trees.items():
            module = "quorumlog." + source.removesuffix(".py").replace("/", ".")
            for node in tree.body:
                if isinstance(node, ast.ImportFrom | ast.Import):
                    lines |= dict.fromkeys(_used(node, names - own))
                elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                    for each in node.body:
                        if isinstance(each, ast.ImportFrom | ast.Import):
                            later |= dict.fromkeys(_used(each, names - own))
            here = [name for name in _defined(tree) if name in names - own]
            lines |= dict.fromkeys(f"from {module} import {name}" for name in here)
        extra = ast.parse(
            "from collections.abc import Iterable, Iterator\nfrom typing import Self\n"
            "from quorumlog.errors import BadRequest, LedgerError\n"
            "from quorumlog.net.loop_thread import ClientShell, Shell\n" + self._output.imports
        )
        for node in extra.body:
            assert isinstance(node, ast.ImportFrom), ast.dump(node)
            lines |= dict.fromkeys(_used(node, names))
        later = {line: None for line in later if line not in lines}
        if later:
            lines["from typing import TYPE_CHECKING"] = None
        block = "".join(f"    {line}\n" for line in later)
        return "\n".join(lines) + (f"\n\nif TYPE_CHECKING:\n{block}" if later else "")

    # ---------------------------------------------------------------- classes

    def _class(self, made: Class) -> Iterator[str]:
        tree, source = self._trees[made.source]
        node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == made.name)
        generic = next((ast.unparse(b)[len("Generic") :] for b in node.bases if _is_generic(b)), "")
        default = (
            f"ClientShell[{made.name}{generic}]" if made.is_client else f"Shell[{made.name}{generic}]"
        )
        bases = (made.bases or default) + (f", Generic{generic}" if generic else "")
        yield f"class {made.blocking}({bases}):"
        yield self._docstring(node, source, "    ")
        for name, kind in made.attributes.items():
            yield f"\n    @property\n    def {name}(self) -> {kind}:\n        return self._it.{name}"
        for each in node.body:
            if not isinstance(each, Function):
                continue
            if each.name == "__init__" and made.is_client:
                yield from self._init(made, each, source)
            elif each.name == "__aenter__" and not made.is_client:
                yield (
                    "\n    def __enter__(self) -> Self:\n"
                    "        self._thread.run(self._it.__aenter__())\n        return self"
                )
            elif each.name == "__aexit__" and not made.is_client:
                yield "\n    def __exit__(self, *exception: object) -> None:\n        self.close()"
            elif each.name == "close" and made.is_client:
                continue  # `ClientShell` has it
            elif not each.name.startswith("_") and each.name not in made.without:
                yield from self._method(made, each, source)
        if made.more:
            yield f"\n    {made.more}"
        if any(isinstance(each, Function) and each.name == "__repr__" for each in node.body):
            yield (
                "\n    def __repr__(self) -> str:\n"
                f'        return repr(self._made).replace("<{made.name}", "<{made.blocking}", 1)'
            )

    def _init(self, made: Class, node: Function, source: str) -> Iterator[str]:
        arguments = _passed(node.args, made.given)
        yield f"\n    def __init__({self._parameters(node)}) -> None:"
        if ast.get_docstring(node):
            yield self._docstring(node, source, "        ")
        make = f"lambda: {made.name}({arguments})"
        if made.before:
            yield f"        def make() -> {made.name}:\n            {made.before}"
            yield f"            return {made.name}({arguments})\n"
            make = "make"
        yield (
            f"        super().__init__({make}, lambda: {made.closed}"
            f"{f', end={made.end}' if made.end else ''}"
            f"{f', stays_with_parent={made.stays}' if made.stays else ''})"
        )
        if made.after:
            yield f"        {made.after}"

    def _method(self, made: Class, node: Function, source: str) -> Iterator[str]:
        decorators = {ast.unparse(each) for each in node.decorator_list}
        if decorators & {"classmethod", "staticmethod"} or any("setter" in each for each in decorators):
            return
        name = _RENAMED.get(node.name, node.name)
        yield ""
        yield from (f"    @{each}" for each in sorted(decorators))
        returns = self._blocking(ast.unparse(node.returns)) if node.returns else "None"
        head = f"    def {name}({self._parameters(node)}) -> {returns}:"
        if "overload" in decorators:
            yield f"{head} ..."
            return
        yield head
        if ast.get_docstring(node):
            yield self._docstring(node, source, "        ")
        yield f"        {self._body(made, node, decorators, returns)}"

    def _body(self, made: Class, node: Function, decorators: set[str], returns: str) -> str:
        if "property" in decorators:
            return f"return self._it.{node.name}"
        call = f"self._it.{node.name}({_passed(node.args, {})})"
        if isinstance(node, ast.AsyncFunctionDef) and any(
            isinstance(each, ast.Yield) for each in ast.walk(node)
        ):
            return f"return self._each({call})"
        value = call
        if isinstance(node, ast.AsyncFunctionDef):
            value = f"self._thread.run({call})"
        elif node.name in made.on_loop:
            value = f"self._thread.call(lambda: {call})"
        shell = returns.split("[")[0]
        if shell in self._shells.values():
            value = f"{shell}(self._thread, {value})"
        if node.name in _ENDS:
            return f"if not self._is_left:\n            {value}"
        return value if returns == "None" else f"return {value}"

    # ---------------------------------------------------------------- parts

    def _parameters(self, node: Function) -> str:
        return self._blocking(ast.unparse(node.args))

    def _blocking(self, annotation: str) -> str:
        names = _TYPES | self._shells
        renamed = re.sub(r"\w+", lambda found: names.get(found[0], found[0]), annotation)
        return re.sub(r"(\w+\[\w+\]) \| \1", r"\1", renamed)

    def _docstring(self, node: ast.ClassDef | Function, source: str, indent: str) -> str:
        first = node.body[0]
        assert isinstance(first, ast.Expr), f"{node.name} says nothing of itself"
        text = ast.get_source_segment(source, first)
        assert text is not None
        text = re.sub(r"\b(async|await) (?=with|for|\w+\.|\w+\()", "", text)
        text = re.sub(r"`async (with|for)`", r"`\1`", text)
        shells = self._shells
        return indent + re.sub(r"\w+", lambda found: shells.get(found[0], found[0]), text)


def _is_generic(base: ast.expr) -> bool:
    return isinstance(base, ast.Subscript) and ast.unparse(base.value) == "Generic"


def _tree(source: str) -> tuple[ast.Module, str]:
    text = (SOURCES / source).read_text()
    return ast.parse(text), text


def _used(node: ast.ImportFrom | ast.Import, names: set[str]) -> Iterator[str]:
    for alias in node.names:
        if (alias.asname or alias.name).split(".")[0] not in names:
            continue
        named = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
        if isinstance(node, ast.Import):
            yield f"import {named}"
        elif node.module != "__future__":
            yield f"from {node.module} import {named}"


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            targets = ast.walk(ast.Tuple(node.targets))
            yield from (each.id for each in targets if isinstance(each, ast.Name))


def _passed(arguments: ast.arguments, given: Mapping[str, str]) -> str:
    """The arguments as a caller passes its own on."""
    by_place = [each.arg for each in (*arguments.posonlyargs, *arguments.args) if each.arg != "self"]
    by_name = [each.arg for each in arguments.kwonlyargs]
    passed = [given.get(name, name) for name in by_place]
    passed += [f"{name}={given.get(name, name)}" for name in by_name]
    if arguments.vararg is not None:
        passed.insert(len(by_place), f"*{arguments.vararg.arg}")
    if arguments.kwarg is not None:
        passed.append(f"**{arguments.kwarg.arg}")
    return ", ".join(passed)


def main() -> None:
    for output in OUTPUTS:
        (SOURCES / output.target).write_text(Writer(output).text())
        print(f"src/quorumlog/{output.target}")


if __name__ == "__main__":
    main()

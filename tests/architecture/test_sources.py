"""What is wrong in a module whatever it imports, read from the syntax of all of them.

Who may import whom stands in pyproject.toml. Here: the global random generator, a set that is iterated
(the order of its strings differs between two runs, and with it the messages of a member that should
replay exactly), a module that says nothing or that nobody reaches.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}


def below(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def parse(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(), str(MODULES[module]))


def imports(module: str) -> Iterator[tuple[int, str]]:
    """(line, imported name) of every import, also those inside functions; names in full."""
    for node in ast.walk(parse(module)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, (
                f"{module}:{node.lineno}: a relative import hides which folder it names"
            )
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


@pytest.mark.parametrize("package", ["quorumlog.consensus", "quorumlog.node", "quorumlog.testing"])
def test_randomness_comes_from_a_generator_that_is_passed_in(package: str) -> None:
    found = []
    for module in (m for m in MODULES if below(m, package)):
        for node in ast.walk(parse(module)):
            if isinstance(node, ast.ImportFrom) and node.module == "random":
                found += [f"{module}:{node.lineno} {a.name}" for a in node.names if a.name != "Random"]
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "random"
                and any(name == "random" for _, name in imports(module))
                and node.attr != "Random"
                and not _is_a_local_named_random(node, parse(module))
            ):
                found.append(f"{module}:{node.lineno} random.{node.attr}")
    assert not found, f"the global generator cannot be replayed: {found}"


def _is_a_local_named_random(use: ast.Attribute, tree: ast.Module) -> bool:
    """True inside a function that has a parameter `random`: then the name is the generator passed in."""
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= use.lineno <= (node.end_lineno or node.lineno)
        and any(a.arg == "random" for a in (*node.args.args, *node.args.kwonlyargs))
        for node in ast.walk(tree)
    )


# ---------------------------------------------------------------- sets are never iterated

ORDER_FREE = {"sorted", "set", "frozenset", "any", "all", "sum", "len", "min", "max", "bool"}
ORDERED = {"list", "tuple", "iter", "enumerate", "map", "filter", "zip", "next", "reversed"}


def _is_set_annotation(annotation: ast.expr | None) -> bool:
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    return isinstance(annotation, ast.Name) and annotation.id in ("set", "frozenset", "AbstractSet")


def _names_of_sets(tree: ast.Module) -> set[str]:
    """Variables, attributes, parameters and functions that a module declares to be sets."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and _is_set_annotation(node.annotation):
            names.add(_name_of(node.target))
        elif isinstance(node, ast.arg) and _is_set_annotation(node.annotation):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef) and _is_set_annotation(node.returns):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and _is_set_display(node.value):
            names.update(_name_of(target) for target in node.targets)
    return names - {""}


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _is_set_display(node: ast.expr) -> bool:
    return isinstance(node, ast.Set | ast.SetComp) or (
        isinstance(node, ast.Call) and _name_of(node.func) in ("set", "frozenset")
    )


def _is_set(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(
        node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor
    ):
        return _is_set(node.left, names) or _is_set(node.right, names)
    if isinstance(node, ast.Call) and _name_of(node.func) in names:
        return True
    return _is_set_display(node) or _name_of(node) in names


def iterated_sets(tree: ast.Module) -> list[int]:
    """Lines on which the order of a set may reach a result."""
    names = _names_of_sets(tree)
    free = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.SetComp):
            free.add(node)
        elif isinstance(node, ast.Call) and _name_of(node.func) in ORDER_FREE:
            free.update(a for a in node.args if isinstance(a, ast.GeneratorExp | ast.ListComp))
    lines = []
    for node in ast.walk(tree):
        iterated: list[ast.expr] = []
        if isinstance(node, ast.For):
            iterated = [node.iter]
        elif isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp) and node not in free:
            iterated = [generator.iter for generator in node.generators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDERED:
            iterated = node.args
        elif isinstance(node, ast.Starred):
            iterated = [node.value]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "pop"
        ):
            iterated = [] if node.args else [node.func.value]
        lines += [node.lineno for expression in iterated if _is_set(expression, names)]
    return lines


@pytest.mark.parametrize("package", ["quorumlog.consensus", "quorumlog.node", "quorumlog.testing"])
def test_what_decides_never_iterates_a_set(package: str) -> None:
    found = [
        f"{module}:{line}"
        for module in MODULES
        if below(module, package)
        for line in iterated_sets(parse(module))
    ]
    assert not found, f"sort it, or keep a dict: {found}"


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("for x in {1, 2}: pass", True),
        ("votes: set[str] = set()\nfor vote in votes: pass", True),
        ("votes: set[str] = set()\nfor vote in sorted(votes): pass", False),
        ("self.votes: set[str] = set()\n[v for v in self.votes]", True),
        ("self.votes: set[str] = set()\nany(v for v in self.votes)", False),
        ("def f(a: frozenset[int]): return list(a)", True),
        ("def f(a: frozenset[int]): return len(a)", False),
        ("a = set(b)\nfirst = a.pop()", True),
        ("a = dict(b)\nfirst = a.pop(1)", False),
        ("a = {1} | b\nf(*({1} | b))", True),
        ("votes: dict[str, int] = {}\nfor vote in votes: pass", False),
    ],
)
def test_the_search_for_iterated_sets_finds_them(source: str, caught: bool) -> None:
    assert bool(iterated_sets(ast.parse(source))) is caught


# ---------------------------------------------------------------- nothing lies about unused


def test_every_module_says_what_it_is() -> None:
    silent = [module for module in MODULES if not ast.get_docstring(parse(module))]
    assert not silent


def test_every_module_is_reached_from_an_entry_point() -> None:
    """From the public names, the command line, the pytest plugin and Spark's auto-discovery; lazy ones
    count by name."""
    edges: dict[str, set[str]] = {}
    for module in MODULES:
        named = {name for _, name in imports(module)}
        named |= {
            node.value
            for node in ast.walk(parse(module))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in MODULES
        }
        edges[module] = {
            parent
            for name in named
            for parent in (name, name.rpartition(".")[0])
            if parent in MODULES and parent != module
        }
    reached: set[str] = set()
    waiting = ["quorumlog", "quorumlog.cli.main", "quorumlog.testing", "pyspark_quorumlog"]
    waiting += ["quorumlog.kv.testing", "quorumlog.broker.dledger.dledger_broker"]
    waiting += [module for module in MODULES if module.endswith(".__main__")]
    while waiting:
        module = waiting.pop()
        if module in reached or module not in MODULES:
            continue
        reached.add(module)
        packages = [module.rsplit(".", depth)[0] for depth in range(1, module.count(".") + 1)]
        waiting += [*sorted(edges[module]), *packages]
    assert sorted(set(MODULES) - reached) == []


def compiled_modules() -> set[str]:
    """What `make wheel` compiles, by pyproject.toml."""
    hook = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())
    options = hook["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
    names = [
        entry.removeprefix("/src/").removesuffix(".py").replace("/", ".") for entry in options["include"]
    ]
    return {
        module
        for module, path in MODULES.items()
        if path.name not in options["exclude"] and any(below(module, name) for name in names)
    }


def test_no_interpreted_class_inherits_from_a_compiled_one() -> None:
    """Python cannot make such a class: the wheel would fail where it is used first."""
    compiled = compiled_modules()
    assert compiled
    found = []
    for module in MODULES.keys() - compiled:
        tree = parse(module)
        imported = {
            alias.asname or alias.name: node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases = (ast.unparse(base).partition("[")[0] for base in node.bases)
                found += [
                    f"{module}.{node.name} of {base}" for base in bases if imported.get(base) in compiled
                ]
    assert not found


def test_no_compiled_named_tuple_has_a_field_that_may_be_any_object() -> None:
    """The compiler makes nothing of the name `object` there: the module could not be imported."""
    found = [
        f"{module}.{node.name}"
        for module in compiled_modules()
        for node in ast.walk(parse(module))
        if isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
        and any(isinstance(n, ast.Name) and n.id == "object" for n in ast.walk(field.annotation))
    ]
    assert not found

"""Finds the test files of a module: those that name it, or if none does, those of the files that name it.

A file names a module if it imports it or uses one of its names, also through the `__init__` of a package, a
helper of the tests, or a text: the full name of a module (`f"tfrank.configs.{name}"` is any of the folder), a
program, or code. `test_house.py`, which is of all modules, and the finder's own tests are left out.
"""

import ast
import functools
import os
import pathlib
import re
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
PROGRAMS = {"train_main.py": "tfrank.run.train", "eval_main.py": "tfrank.run.evaluate"}
LEFT_OUT = {"tests.test_house", "tests.test_finder"}
FULL_NAME = re.compile(r"\b(?:tfrank|tests)(?:\.\w+)+\.?")
CODE = re.compile(r"\b(?:from|import) tfrank\b")


def full_name(path: pathlib.Path) -> str:
    """Returns the full name of a file, that of the folder for an `__init__.py`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def files() -> dict[str, pathlib.Path]:
    """Returns the files of tfrank and tests, and the programs, by full name."""
    paths = [path for folder in ("tfrank", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]
    return {full_name(path): path for path in [*paths, *(ROOT / name for name in PROGRAMS)]}


@functools.cache
def parsed(name: str) -> ast.Module:
    """Returns the syntax tree of a file."""
    return ast.parse(files()[name].read_text())


def looked_at(tree: ast.AST) -> list[ast.AST]:
    """Returns the nodes of a tree that can name a module."""
    kinds = ast.Import | ast.ImportFrom | ast.Name | ast.Attribute | ast.Constant
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def imported(nodes: list[ast.AST]) -> dict[str, str]:
    """Returns the full names of tfrank and tests that are imported, by the names that they get."""
    found = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {one.asname or one.name: one.name for one in node.names}
    return {name: full for name, full in found.items() if full.split(".")[0] in ("tfrank", "tests")}


def chain(node: ast.AST) -> str:
    """Returns `a.b.c` of such an expression; "" of another one."""
    if isinstance(node, ast.Attribute):
        return f"{before}.{node.attr}" if (before := chain(node.value)) else ""
    return node.id if isinstance(node, ast.Name) else ""


def used(nodes: list[ast.AST], known: dict[str, str]) -> Iterator[str]:
    """Yields the full names that nodes use, in code and in texts; `known` are those of their own names."""
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute):
            first, dot, rest = chain(node).partition(".")
            if first in known or first == "tfrank":
                yield known.get(first, first) + dot + rest
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from in_text(node.value)


def in_text(text: str) -> Iterator[str]:
    """Yields the full names in a text: those of modules, of a program, and those that code in it uses.

    >>> list(in_text("from tfrank import data"))
    ['tfrank.data']
    """
    if text in PROGRAMS:
        yield from (text.removesuffix(".py"), PROGRAMS[text])
    for name in ["tfrank"] if text == "tfrank" else FULL_NAME.findall(text):
        yield from (name, f"{name}.__main__")
        if name.endswith("."):
            yield from (one for one in files() if one.rpartition(".")[0] == name.rstrip("."))
    if CODE.search(text):
        try:
            code = looked_at(ast.parse(text))
        except SyntaxError:
            return
        yield from imported(code).values()
        yield from used(code, imported(code))


@functools.cache
def offered(name: str) -> dict[str, set[str]]:
    """Returns the full names that each name of a package or of a helper of the tests stands for."""
    tree, own = parsed(name), {}
    for node in tree.body:
        for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]:
            if defined := getattr(target, "id", getattr(target, "name", "")):
                own[defined] = node
    known = imported(looked_at(tree)) | {one: f"{name}.{one}" for one in own}
    stands_for = {one: {full} for one, full in known.items()}
    return stands_for | {one: set(used(looked_at(node), known)) for one, node in own.items()}


@functools.cache
def leads_through(full: str) -> set[str]:
    """Returns the files that a full name leads through, to the one that defines it.

    >>> sorted(leads_through("tfrank.losses.PNPLoss"))
    ['tfrank.losses', 'tfrank.losses.pnp']
    """
    found, todo, passed = set(), [full], set()
    while todo:
        name = todo.pop()
        if name in passed:
            continue
        passed.add(name)
        file, *parts = name.split(".")
        while parts and f"{file}.{parts[0]}" in files():
            file = f"{file}.{parts.pop(0)}"
        found |= {file} & files().keys()
        if parts and (file.startswith("tests") or files()[file].name == "__init__.py"):
            todo += offered(file).get(parts[0], ())
    return found


@functools.cache
def namers() -> dict[str, set[str]]:
    """Returns the files that name each file."""
    found: dict[str, set[str]] = {name: set() for name in files()}
    for name in files().keys() - LEFT_OUT:
        nodes = looked_at(parsed(name))
        known = imported(nodes)
        for full in {*known.values(), *used(nodes, known)}:
            for file in leads_through(full) - {name}:
                found[file].add(name)
    return found


def tests_of_file(name: str, passed: frozenset[str] = frozenset()) -> set[str]:
    """Returns the test files that name a file, or if none does, those of the files that name it."""
    tests = {one for one in namers()[name] if files()[one].name.startswith("test_")}
    others = namers()[name] - passed
    return tests or set().union(*(tests_of_file(one, passed | {name}) for one in others))


def files_that_test(paths: list[str]) -> list[str]:
    """Returns the paths of the test files of modules, which are given by their paths.

    >>> files_that_test(["tfrank/evaluation/evaluators.py"])
    ['tests/configs/test_configs.py', 'tests/evaluation/test_evaluators.py']

    Raises:
        FileNotFoundError: a path is not that of a file of tfrank or tests.
    """
    known = {str(path.relative_to(ROOT)): name for name, path in files().items()}
    if unknown := sorted({*map(os.path.normpath, paths)} - known.keys()):
        raise FileNotFoundError(f"There is no {unknown[0]}. Give paths such as tfrank/data/index.py")
    found = set().union(*(tests_of_file(known[os.path.normpath(path)]) for path in paths))
    return sorted(str(files()[name].relative_to(ROOT)) for name in found)

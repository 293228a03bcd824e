"""The rules of the house: who may import whom, how long a file and a function may be, what is public."""

import ast
import doctest
import importlib
import pathlib
import pkgutil
import re

import pytest

import tfrank
from tests.finder import files_that_test

ROOT = pathlib.Path(tfrank.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
FOLDERS = sorted(path.name for path in ROOT.iterdir() if (path / "__init__.py").exists())
# These may import every folder, but for those at the top, of which only two import others.
TOP = ("configs", "run", "search", "scale", "improve", "callbacks.py", "completion.py", "__init__.py")
ON_TOP_OF = {"scale": {"search"}, "improve": {"search", "run"}}
# What commands show: their own words, those of the data sets that they prepare, and progress.
PRINTING = (
    *("run/", "search/", "scale/", "improve/", "export/__main__.py", "data/prepare/", "data/sources/"),
    *("__main__.py", "completion.py", "common/commands.py", "common/progress.py"),
)
# Some define flags of the same names, so that a process imports one of them.
PROGRAMS = {
    *(
        "tfrank.run.train",
        "tfrank.run.evaluate",
        "tfrank.run.sweep",
        "tfrank.data.prepare.__main__",
        "tfrank.export.__main__",
    ),
    *("tfrank.search.command", "tfrank.search.server.command", "tfrank.scale.command"),
    *("tfrank.search.photos", "tfrank.search.review", "tfrank.search.compat", "tfrank.improve.command"),
}
MODULES = sorted({m.name for m in pkgutil.walk_packages([str(ROOT)], "tfrank.")} - PROGRAMS)


def imported_by(path: pathlib.Path) -> set[str]:
    """The full names that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def texts_of(path: pathlib.Path) -> list[str]:
    """The texts of a file that may be shown, with {} in place of values; docstrings of functions are not."""
    texts = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            texts.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
    documented = (ast.Module, ast.FunctionDef, ast.ClassDef)
    docstrings = {
        ast.get_docstring(node, clean=False)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, documented)
    }
    return [text for text in texts if text not in docstrings]


def flags_of(program: str) -> set[str]:
    """The flags that the module of a command defines."""
    path = ROOT.joinpath(*program.split(".")[1:]).with_suffix(".py")
    return set(re.findall(r'DEFINE_(?!alias)\w+\(\s*"(\w+)"', path.read_text()))


def folder_of(name: str) -> str | None:
    """The folder of tfrank that a full name lies in, if any."""
    parts = name.split(".")
    return parts[1] if parts[0] == "tfrank" and len(parts) > 1 and parts[1] in FOLDERS else None


# The commands whose flags the texts of a folder may name: those that reach them, or that a text names itself.
COMMANDS_OF = {
    "run": {"tfrank.run.train", "tfrank.run.evaluate", "tfrank.run.sweep"},
    "data": {"tfrank.data.prepare.__main__", "tfrank.scale.command"},
    "export": {"tfrank.export.__main__"},
    "search": {
        *("tfrank.search.command", "tfrank.search.server.command", "tfrank.search.photos"),
        *("tfrank.search.review", "tfrank.search.compat", "tfrank.scale.command"),
    },
    "scale": {"tfrank.scale.command"},
    "improve": {"tfrank.improve.command"},
}
# Whose texts may name fields of the config, which are flags of the commands that read one: their own folders,
# and the preparation, which ends with the command that trains on its records.
CONFIG = ("run/", "configs/", "data/prepare/__main__.py")
FIELD = re.compile(r"\bconfig\.(data|model|loss|train|evaluation)\b")
# A model's operations are refused by all commands that load one.
LOADING = PROGRAMS - {"tfrank.run.train", "tfrank.data.prepare.__main__"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_texts_name_only_flags_that_the_commands_they_come_from_have(path):
    folder = path.relative_to(ROOT).parts[0]
    knows_config = str(path.relative_to(ROOT)).startswith(CONFIG)
    known = set().union(*map(flags_of, COMMANDS_OF.get(folder, ()))) | {"help"}
    known |= {"config", "workdir"} if knows_config else set()
    if folder == "export":
        known |= set.intersection(*map(flags_of, LOADING))
    for text in texts_of(path):
        named = set(re.findall(r"--([a-z_]+)(?![a-z_-])", text))
        if "tfrank export" in text:
            named -= flags_of("tfrank.export.__main__")
        # A text that begins with a flag is an argument of another program.
        if not text.startswith("--") and "tensorboard --logdir" not in text:
            assert named <= known, text
            assert knows_config or not FIELD.search(text), text


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_run_search_scale_improve_and_callbacks_import_all_and_no_other_folder_imports_another_but_common(
    path,
):
    place = path.relative_to(ROOT).parts[0]
    folders = {folder_of(name) for name in imported_by(path)} - {None}
    refused = {"run", "search", *ON_TOP_OF} - {place} - ON_TOP_OF.get(place, set())
    assert not folders & refused or path == ROOT / "__init__.py"
    if place not in TOP:
        assert folders <= {place, "common"}


def test_the_rule_of_imports_can_fail(tmp_path):
    offender = tmp_path / "step.py"
    offender.write_text("from tfrank.data.records import RecordReader\nimport tfrank.losses.pnp\n")
    assert {folder_of(name) for name in imported_by(offender)} == {"data", "losses"}


def test_only_commands_print_and_the_library_logs():
    printing = {
        str(path.relative_to(ROOT))
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert {name for name in printing if not name.startswith(PRINTING)} == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_short(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        # Those of configs are lists of fields.
        if isinstance(node, ast.FunctionDef) and path.parent.name != "configs":
            docstring = ast.get_docstring(node) or ""
            assert node.end_lineno - node.lineno - len(docstring.splitlines()) <= 60, node.name


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_public_function_and_class_of_a_module_is_documented():
    missing = [
        f"{path.relative_to(ROOT)}:{node.name}"
        for path in FILES
        for node in ast.parse(path.read_text()).body
        # What `get_config` of a config gives is said by its module.
        if path.parent.name != "configs"
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        if not ast.get_docstring(node)
    ]
    assert not missing


def test_every_module_with_code_has_tests():
    without = [
        str(path.relative_to(ROOT))
        for path in FILES
        # An `__init__` of a docstring alone has nothing to test.
        if not files_that_test([f"tfrank/{path.relative_to(ROOT)}"])
        if len(ast.parse(path.read_text()).body) > 1 or path.name != "__init__.py"
    ]
    assert not without

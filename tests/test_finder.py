"""Which test files are found for a module."""

import doctest

import pytest

from tests import __main__ as runner
from tests import finder
from tests.finder import files_that_test, imported, in_text, leads_through, looked_at, used


def names(code):
    nodes = looked_at(finder.ast.parse(code))
    return {*imported(nodes).values(), *used(nodes, imported(nodes))}


def test_a_module_is_named_by_an_import_a_name_of_it_and_a_text():
    assert names("import tfrank.data.index") == {"tfrank.data.index"}
    assert names("from tfrank.data import index as i\ni.select(1).x") >= {"tfrank.data.index.select"}
    assert names("import numpy as np\nnp.zeros(1)") == set()
    assert "tfrank.run.train" in set(in_text("train_main.py")) and not set(in_text("train_main"))
    assert "tfrank.__main__" in set(in_text("tfrank")) and not set(in_text("runs of tfrank"))
    assert "tfrank.data.prepare.__main__" in set(in_text("tfrank.data.prepare"))
    assert {"tfrank.configs.cub", "tfrank.configs.sop"} < names("f'tfrank.configs.{name}'")
    assert "tfrank.losses.PNPLoss" in names("CODE = 'from tfrank import losses; losses.PNPLoss()'")


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("tfrank.data.index.RecordIndex", "tfrank.data.index"),
        ("tfrank.PNPLoss", "tfrank.losses.pnp"),
        ("tfrank.search.open", "tfrank.search.index"),
        # A table, and a function that reads it, are of all that it lists; so is a helper of the tests.
        ("tfrank.LOSSES", "tfrank.losses.sup_ap"),
        ("tfrank.losses.get", "tfrank.losses.proxies.arc_face"),
        ("tests.command_lines.PREPARE", "tfrank.data.prepare"),
    ],
)
def test_a_name_leads_to_the_module_that_defines_it(name, module):
    assert module in leads_through(name)


def test_a_name_leads_to_no_other_module():
    assert leads_through("tfrank.PNPLoss") == {"tfrank", "tfrank.losses", "tfrank.losses.pnp"}
    assert leads_through("tfrank.data.index.RecordIndex") == {"tfrank.data.index"}


def test_the_tests_of_a_module_are_those_that_name_it_else_those_of_its_users():
    found = files_that_test(["tfrank/evaluation/evaluators.py", "tfrank/data/index.py"])
    assert {"tests/evaluation/test_evaluators.py", "tests/data/test_index.py"} < {*found}
    assert "tests/test_house.py" not in found and "tests/losses/test_losses.py" not in found
    # No test names how the server guards its requests: those of the application, which does, are found.
    guard, app = (files_that_test([f"tfrank/search/server/{name}.py"]) for name in ("guard", "app"))
    assert guard and {*guard} <= {*app}
    assert files_that_test(["./tfrank/data/index.py"]) == files_that_test(["tfrank/data/index.py"])
    # Nothing names a package that offers no name.
    assert files_that_test([]) == files_that_test(["tfrank/training/__init__.py"]) == []


def test_what_is_no_file_of_the_repository_is_refused():
    with pytest.raises(FileNotFoundError, match=r"no tfrank/indx\.py\. Give paths such as"):
        files_that_test(["tfrank/data/index.py", "tfrank/indx.py"])


def test_the_tests_of_files_run_in_parts_and_other_arguments_go_to_pytest(monkeypatch):
    ran = []
    monkeypatch.setattr(
        runner, "run", lambda part, arguments, programs: ran.append((part, arguments)) or (1, "")
    )
    assert runner.main(["--of", "tfrank/evaluation/evaluators.py", "-k", "default"]) == 0
    assert ["tests/evaluation/test_evaluators.py"] in [part for part, _ in ran]
    assert all(arguments == ["-k", "default"] for _, arguments in ran)


def test_its_examples_run():
    assert doctest.testmod(finder).failed == 0

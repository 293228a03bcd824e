"""The command `tfrank` and its verbs, as a real process."""

import pytest

from tests.command_lines import ROOT, run
from tfrank.__main__ import VERBS


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_the_verbs_are_listed_in_the_order_in_which_a_person_needs_them(words):
    status, printed, errors = run("-m", "tfrank", *words)
    assert (status, errors) == (0, "")
    listed = [line.split()[1] for line in printed.splitlines() if line.startswith("  tfrank ")]
    assert (
        listed
        == list(VERBS)
        == [
            *(
                "photos",
                "prepare",
                "train",
                "eval",
                "sweep",
                "index",
                "compat",
                "serve",
                "improve",
                "review",
                "export",
                "scale",
                "completion",
            )
        ]
    )


def test_an_unknown_verb_is_one_line():
    status, printed, errors = run("-m", "tfrank", "idnex", "--index_dir=x")
    assert (status, printed) == (1, "") and len(errors.splitlines()) == 1
    assert errors.startswith("Error: There is no `tfrank idnex`.") and 'Did you mean "index"?' in errors


def test_one_script_is_installed():
    scripts = (ROOT / "setup.cfg").read_text().split("console_scripts =")[1].split("[")[0]
    assert scripts.split("\n")[1:2] == ["    tfrank = tfrank.__main__:main"] and scripts.count("=") == 1


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_its_flags(verb):
    status, printed, errors = run("-m", "tfrank", verb, "--help")
    assert (status, errors) == (0, "") and "--" in printed
